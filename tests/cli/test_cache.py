"""``fastloader cache`` lists files of pixels and removes them."""

import json
import os
import sys

import pytest

from fastloader import OMEArrowDataset, write_images
from fastloader.cli import main
from tests.image_files import random_pixels

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs locks of files")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a cache folder with two files, the first of which was used long ago."""
    for name in ("old", "new"):
        write_images([random_pixels((8, 8))], tmp_path / f"{name}.parquet", progress=False)
        OMEArrowDataset(
            tmp_path / f"{name}.parquet", cache="disk", cache_dir=tmp_path / "cache", axes="YX"
        )
    (old,) = (tmp_path / "cache").glob("old*.pixels")
    os.utime(old, (0, 0))
    monkeypatch.setenv("FASTLOADER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left(folder):
    return sorted(path.name.partition("-")[0] for path in folder.glob("*.pixels"))


def test_files_are_listed_with_what_they_take(folder, capsys):
    assert main(["cache"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("old-")
    assert "1970" in lines[1]
    assert lines[2].startswith("new-")
    assert lines[-1].startswith(f"{folder}: 2 files, 0.0 MB")
    assert left(folder) == ["new", "old"]


def test_what_is_used_stays(folder, tmp_path, capsys):
    dataset = OMEArrowDataset(
        tmp_path / "old.parquet", cache="disk", cache_dir=folder, axes="YX"
    )

    assert main(["cache", "--clear", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert left(folder) == ["old"]
    assert [(one["in_use"], one["removed"]) for one in told["files"]] == [
        (False, True),
        (True, False),
    ]
    assert told["bytes"] == told["files"][1]["bytes"] > 0
    assert dataset[0].sum() > 0


def test_until_so_much_is_left(folder, capsys):
    size = max(path.stat().st_size for path in folder.glob("*.pixels"))

    assert main(["cache", "--max-bytes", str(size), "--cache-dir", str(folder)]) == 0

    assert left(folder) == ["new"]
    assert "1 removed" in capsys.readouterr().out


def test_an_empty_folder_is_said_to_be_empty(tmp_path, capsys):
    assert main(["cache", "--cache-dir", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'none'}: 0 files, 0.0 MB\n"


@pytest.mark.parametrize(
    ("text", "max_bytes"), [("0", 0), ("20GB", 20 * 10**9), ("1.5 KiB", 1536), ("7mb", 7 * 10**6)]
)  # fmt: skip
def test_sizes_have_units(tmp_path, monkeypatch, text, max_bytes):
    given = []
    monkeypatch.setattr(
        "fastloader.cache.remove_cache_files", lambda _, limit: given.append(limit) or []
    )

    main(["cache", "--max-bytes", text, "--cache-dir", str(tmp_path)])

    assert given == [max_bytes]


@pytest.mark.parametrize("text", ["", "much", "1.2.3GB", "-1", "5 apples"])
def test_other_sizes_are_wrong_usage(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["cache", f"--max-bytes={text}"])
    assert "such as 500MB or 20GB" in capsys.readouterr().err
