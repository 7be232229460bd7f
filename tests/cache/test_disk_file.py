"""Cache files: found again, made anew when the content is another, whole at any moment."""

import errno
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from fastloader.cache import _disk_file, default_cache_folder, disk_cache_path
from fastloader.cache._disk_file import DISK_HEADER_BYTES, open_disk_file
from fastloader.errors import SharedMemoryError

if sys.platform != "win32":
    import fcntl

SIZE = DISK_HEADER_BYTES + 100


def do_nothing():
    pass


def refuse():
    raise AssertionError("the file is there already")


def open_file(path, content="a", num_bytes=SIZE, check_room=do_nothing):
    return open_disk_file(path, content, num_bytes, check_room)


def test_a_new_file_has_zeros_behind_its_header(tmp_path):
    with open_file(tmp_path / "deep" / "a.pixels") as file:
        assert file.size_bytes == SIZE
        assert not any(file.map()[DISK_HEADER_BYTES:])


def test_a_file_of_the_same_content_is_found_again(tmp_path):
    path = tmp_path / "a.pixels"
    with open_file(path) as file:
        file.map()[DISK_HEADER_BYTES] = 7

    with open_file(path, check_room=refuse) as file:
        assert file.map()[DISK_HEADER_BYTES] == 7


@pytest.mark.parametrize(
    ("content", "num_bytes"), [("b", SIZE), ("a", SIZE + 1)], ids=["content", "size"]
)
def test_a_file_of_other_content_is_replaced_and_stays_whole_where_it_is_mapped(
    tmp_path, content, num_bytes
):
    path = tmp_path / "a.pixels"
    with open_file(path) as old, open_file(path, content, num_bytes) as new:
        old.map()[DISK_HEADER_BYTES] = 7

        assert new.size_bytes == num_bytes
        assert new.map()[DISK_HEADER_BYTES] == 0


@pytest.mark.parametrize("damage", ["cut", "header", "empty"])
def test_a_damaged_file_is_replaced(tmp_path, damage):
    path = tmp_path / "a.pixels"
    with open_file(path) as file:
        file.map()[DISK_HEADER_BYTES] = 7
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(
        {"cut": path.read_bytes()[:-1], "header": bytes(content), "empty": b""}[damage]
    )

    with open_file(path) as file:
        assert file.size_bytes == SIZE
        assert file.map()[DISK_HEADER_BYTES] == 0


def test_what_a_killed_process_left_is_removed(tmp_path):
    path = tmp_path / "a.pixels"
    leftover = tmp_path / "a.pixels.x1y2.part"
    leftover.write_bytes(b"half a header")

    with open_file(path):
        assert not leftover.exists()
        assert {file.name for file in tmp_path.iterdir()} == {"a.pixels", "a.lock"}


def test_no_room_leaves_nothing_behind(tmp_path):
    def no_room():
        raise SharedMemoryError("no room")

    with pytest.raises(SharedMemoryError, match="no room"):
        open_file(tmp_path / "a.pixels", check_room=no_room)

    assert not list(tmp_path.glob("*.pixels*"))


def test_a_folder_that_cannot_be_written_to_is_an_error_that_says_what_to_do(tmp_path):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(SharedMemoryError, match=r"cache_dir=.*FASTLOADER_CACHE_DIR"):
        open_file(tmp_path / "file" / "a.pixels")


def test_names_that_are_no_text_have_a_file_of_their_own(tmp_path):
    folder = tmp_path / os.fsdecode(b"caches\xff")
    paths = {disk_cache_path(folder, os.fsdecode(name), "all") for name in (b"a\xfe", b"a\xff")}

    for path in paths:
        open_file(path).close()

    assert len(paths) == 2
    assert {path.name for path in folder.glob("*.pixels")} == {path.name for path in paths}


def test_a_limit_of_the_length_of_files_names_the_file_and_leaves_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(SharedMemoryError, match=r"a\.pixels cannot be made .*cache_dir="):
            open_file(tmp_path / "a.pixels", num_bytes=2 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)

    assert not list(tmp_path.glob("*.pixels*"))


def test_a_source_keeps_its_file_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = disk_cache_path(Path("c"), "images/cells.ome.parquet, column 'image'", "all")

    assert path.parent == Path("c")
    assert path.name.startswith("cells-")
    assert path.suffix == ".pixels"
    absolute = f"{tmp_path}/images/cells.ome.parquet, column 'image'"
    assert path == disk_cache_path(Path("c"), absolute, "all")
    assert path != disk_cache_path(Path("c"), absolute, "some")


def test_a_url_does_not_depend_on_the_folder(tmp_path, monkeypatch):
    before = disk_cache_path(Path("c"), "s3://bucket/a.parquet", "all")
    monkeypatch.chdir(tmp_path)

    assert before == disk_cache_path(Path("c"), "s3://bucket/a.parquet", "all")


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of Linux")
def test_the_folder_is_the_environments_or_the_users(monkeypatch):
    monkeypatch.setenv("FASTLOADER_CACHE_DIR", "/fast")
    assert default_cache_folder() == Path("/fast")
    monkeypatch.delenv("FASTLOADER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache_folder() == Path("/caches/fastloader")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_folder() == Path(os.path.expanduser("~/.cache/fastloader"))  # noqa: PTH111


@pytest.mark.skipif(sys.platform != "linux", reason="room is reserved by fallocate(2)")
def test_room_is_taken_when_a_file_is_made(tmp_path):
    size = DISK_HEADER_BYTES + (1 << 20)

    with open_file(tmp_path / "a.pixels", num_bytes=size):
        state = (tmp_path / "a.pixels").stat()

    assert state.st_blocks * 512 >= size


def test_a_disk_without_room_is_said_to_be_full_and_stays_as_it_was(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_disk_file, "_reserve", fail)

    with pytest.raises(SharedMemoryError, match=r"No space left on device.*has room"):
        open_file(tmp_path / "a.pixels")
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]


@pytest.mark.parametrize(
    "name", ["link.parquet", "linked/cells.parquet", "loop/../link.parquet"]
)
def test_all_names_of_a_source_give_one_file(tmp_path, monkeypatch, name):
    (tmp_path / "images, raw").mkdir()
    (tmp_path / "loop").mkdir()
    path = tmp_path / "images, raw" / "cells.parquet"
    path.write_bytes(b"")
    (tmp_path / "link.parquet").symlink_to(path)
    (tmp_path / "linked").symlink_to(path.parent)
    monkeypatch.chdir(tmp_path)
    rest = ", column 'a, b' and 3 more files"

    assert disk_cache_path(Path("c"), f"{path}{rest}", "all") == disk_cache_path(
        Path("c"), f"{name}{rest}", "all"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_without_locks_of_the_file_system_the_processes_of_a_machine_wait(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    of_others = tmp_path / "a.pixels.x1y2.part"
    of_others.write_bytes(b"of another machine, perhaps")
    lockf, in_turn = fcntl.lockf, []

    def lock(descriptor, *arguments):
        locked = Path(f"/dev/fd/{descriptor}").resolve().name
        in_turn.append(locked)
        if locked == "a.lock":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        lockf(descriptor, *arguments)

    monkeypatch.setattr(fcntl, "lockf", lock)

    with open_file(tmp_path / "a.pixels") as file:
        file.map()[DISK_HEADER_BYTES] = 7
    with open_file(tmp_path / "a.pixels", check_room=refuse) as file:
        assert file.map()[DISK_HEADER_BYTES] == 7
    assert in_turn == ["a.lock", "lock"] * 2
    assert of_others.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="rights of POSIX")
def test_a_folder_that_is_made_is_the_users_alone_and_a_file_is_as_all_of_the_users(tmp_path):
    before = os.umask(0o027)
    try:
        open_file(tmp_path / "made" / "a.pixels").close()
    finally:
        os.umask(before)

    rights = [path.stat().st_mode & 0o777 for path in sorted(tmp_path.rglob("*"))]
    assert rights == [0o700, 0o640, 0o640]
