"""A destination appears whole or not at all."""

import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from fastloader._atomic import replacing
from fastloader.errors import DestinationError

if sys.platform != "win32":
    import fcntl


def test_a_file_appears_when_the_block_is_done(tmp_path):
    target = tmp_path / "deep" / "a.txt"

    with replacing(target, overwrite=False) as path:
        path.write_text("new")
        assert not target.exists()

    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_made(tmp_path, is_there):
    target = tmp_path / "elsewhere" / "a.txt"
    target.parent.mkdir()
    if is_there:
        target.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(target)

    with replacing(link, overwrite=True) as path:
        path.write_text("new")

    assert link.is_symlink()
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


def write_and_die(target, when):
    """Write a folder and end as a kill would, in the block or between its two renames."""
    Path.replace = lambda *_: os._exit(9)
    with replacing(target, overwrite=True) as path:
        path.mkdir()
        (path / "b").write_text("new")
        if when == "inside":
            os._exit(9)


@pytest.mark.multiprocess
@pytest.mark.parametrize("when", ["inside", "between"])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, when):
    target = tmp_path / "a"
    target.mkdir()
    (target / "b").write_text("old")
    child = multiprocessing.get_context("fork").Process(
        target=write_and_die, args=(target, when)
    )
    child.start()
    child.join()
    assert child.exitcode == 9
    assert len(list(tmp_path.glob(".a.*.part"))) == 1

    with pytest.raises(DestinationError, match="exists already"):
        write_text(target, overwrite=False)

    assert list(tmp_path.iterdir()) == [target]
    assert (target / "b").read_text() == "old"


def write_text(target, *, overwrite):
    with replacing(target, overwrite=overwrite) as path:
        path.write_text("newest")


def test_a_process_that_is_still_at_work_keeps_its_folder(tmp_path):
    target = tmp_path / "a"

    with replacing(target, overwrite=True) as path:
        path.write_text("first")
        write_text(target, overwrite=True)
        assert path.read_text() == "first"

    assert target.read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_a_folder_that_another_process_looks_at_as_it_is_made_is_kept(tmp_path, monkeypatch):
    make = tempfile.mkdtemp

    def make_under_its_eyes(*args):
        folder = make(*args)
        looking = os.open(folder, os.O_RDONLY)
        fcntl.flock(looking, fcntl.LOCK_EX)
        threading.Timer(0.05, os.close, (looking,)).start()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", make_under_its_eyes)
    with replacing(tmp_path / "result", overwrite=True) as part:
        part.write_text("ours")
        time.sleep(0.1)
        with replacing(tmp_path / "result", overwrite=True) as other:
            other.write_text("theirs")

    assert (tmp_path / "result").read_text() == "ours"
