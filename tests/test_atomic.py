"""A destination appears whole or not at all."""

import pytest

from fastloader._atomic import replacing
from fastloader.errors import DestinationError


def test_a_file_appears_when_the_block_is_done(tmp_path):
    target = tmp_path / "deep" / "a.txt"

    with replacing(target, overwrite=False) as path:
        path.write_text("new")
        assert not target.exists()

    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("before", ["nothing", "file", "folder"])
@pytest.mark.parametrize("fails", [True, False])
def test_anything_is_replaced_by_anything_or_stays(tmp_path, kind, before, fails):
    target = tmp_path / "a"
    if before == "file":
        target.write_text("old")
    elif before == "folder":
        target.mkdir()
        (target / "b").write_text("old")

    def write():
        with replacing(target, overwrite=True) as path:
            if kind == "file":
                path.write_text("new")
            else:
                path.mkdir()
                (path / "b").write_text("new")
            if fails:
                raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            write()
    else:
        write()

    now = before if fails else kind
    found = "nothing" if not target.exists() else "folder" if target.is_dir() else "file"
    assert found == now
    if now != "nothing":
        content = (target / "b" if now == "folder" else target).read_text()
        assert content == ("old" if fails else "new")
    assert len(list(tmp_path.iterdir())) == (now != "nothing")


def test_what_appeared_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "a"

    def write():
        with replacing(target, overwrite=False) as path:
            path.write_text("new")
            target.write_text("of somebody else")

    with pytest.raises(DestinationError):
        write()

    assert target.read_text() == "of somebody else"
