"""Cache files of a folder are listed, and removed unless somebody has them."""

import multiprocessing
import os
import sys
import threading
from pathlib import Path

import pytest

from fastloader.cache import _disk_file, find_cache_files, remove_cache_files
from fastloader.cache._disk_file import DISK_HEADER_BYTES, open_disk_file
from fastloader.errors import SharedMemoryError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs locks of files")

SIZE = DISK_HEADER_BYTES + 100


def do_nothing():
    pass


def open_file(path):
    return open_disk_file(path, "a", SIZE, do_nothing)


def make_files(folder, names="abc"):
    """Make files that were used one after the other, the last one a minute ago."""
    for number, name in enumerate(names):
        open_file(folder / f"{name}.pixels").close()
        when = (folder / f"{name}.pixels").stat().st_mtime - 60 * (len(names) - number)
        os.utime(folder / f"{name}.pixels", (when, when))


def names_of(files):
    return "".join(file.path.stem for file in files)


def test_files_are_listed_by_their_last_use(tmp_path):
    make_files(tmp_path)
    (tmp_path / "other.pixels").write_text("of somebody else")
    (tmp_path / "empty.pixels").touch()
    (tmp_path / "folder.pixels").mkdir()
    open_file(tmp_path / "a.pixels").close()

    files = find_cache_files(tmp_path)

    assert names_of(files) == "bca"
    assert {file.num_bytes for file in files} == {SIZE}
    assert not any(file.is_in_use for file in files)


def test_no_folder_has_no_files(tmp_path):
    assert find_cache_files(tmp_path / "none") == []


def test_a_folder_that_is_none_is_told(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(SharedMemoryError, match="cannot be read"):
        find_cache_files(tmp_path / "file")


@pytest.mark.parametrize(
    ("max_bytes", "left"), [(0, ""), (SIZE - 1, ""), (SIZE, "c"), (3 * SIZE - 1, "bc"), (3 * SIZE, "abc")]
)  # fmt: skip
def test_those_not_used_for_longest_are_removed_first(tmp_path, max_bytes, left):
    make_files(tmp_path)

    removed = remove_cache_files(find_cache_files(tmp_path), max_bytes)

    assert names_of(removed) + left == "abc"
    assert names_of(find_cache_files(tmp_path)) == left
    assert {path.stem for path in tmp_path.iterdir()} == set(left)  # no locks stay


def test_a_file_that_is_in_use_stays_and_counts(tmp_path):
    make_files(tmp_path)
    with open_file(tmp_path / "a.pixels") as file:
        mapping = file.map()
        files = sorted(find_cache_files(tmp_path), key=lambda one: one.path)

        assert [one.is_in_use for one in files] == [True, False, False]
        assert names_of(remove_cache_files(files, 2 * SIZE)) == "b"
        assert names_of(remove_cache_files(files[:1], 0)) == ""
        assert (tmp_path / "a.pixels").exists()

    assert names_of(remove_cache_files(find_cache_files(tmp_path), SIZE)) == "c"
    assert mapping[:10] == b"fastloader"


def hold_file(path, connection):
    with open_file(path):
        connection.send("open")
        connection.recv()


@pytest.mark.multiprocess
def test_another_process_has_it_until_it_ends_however(tmp_path):
    path = tmp_path / "a.pixels"
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    child = context.Process(target=hold_file, args=(path, there))
    child.start()
    assert here.poll(60)

    assert not remove_cache_files(find_cache_files(tmp_path), 0)

    child.kill()
    child.join()
    assert names_of(remove_cache_files(find_cache_files(tmp_path), 0)) == "a"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.multiprocess
def test_a_forked_child_has_it_when_its_parent_has_not(tmp_path):
    file = open_file(tmp_path / "a.pixels")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    file.close()

    assert not remove_cache_files(find_cache_files(tmp_path), 0)

    os.close(reader)
    os.close(writer)
    os.waitpid(child, 0)
    assert names_of(remove_cache_files(find_cache_files(tmp_path), 0)) == "a"


def test_what_a_killed_process_left_goes_too(tmp_path):
    make_files(tmp_path, "a")
    (tmp_path / "a.pixels.0123.part").touch()

    remove_cache_files(find_cache_files(tmp_path), 0)

    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone_by_then_is_removed(tmp_path):
    make_files(tmp_path)
    files = find_cache_files(tmp_path)
    (tmp_path / "a.pixels").unlink()

    assert names_of(remove_cache_files(files, 0)) == "abc"


def test_a_file_that_cannot_be_removed_is_told(tmp_path, monkeypatch):
    make_files(tmp_path, "a")

    def refuse(*_, **__):
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "unlink", refuse)

    with pytest.raises(SharedMemoryError, match=r"a\.pixels cannot be removed: not yours"):
        remove_cache_files(find_cache_files(tmp_path), 0)


def test_nothing_is_removed_where_nobody_can_know(tmp_path, monkeypatch):
    make_files(tmp_path)

    def refuse(*_):
        raise OSError("no locks")

    monkeypatch.setattr(_disk_file.fcntl, "flock", refuse)
    open_file(tmp_path / "a.pixels").close()

    assert all(file.is_in_use for file in find_cache_files(tmp_path))
    assert not remove_cache_files(find_cache_files(tmp_path), 0)


def remove_and_make(folder):
    path = folder / "a.pixels"
    for _ in range(60):
        remove_cache_files(find_cache_files(folder), 0)
        with open_file(path) as file:
            assert path.stat().st_ino == os.fstat(file.fileno()).st_ino
            assert not remove_cache_files(find_cache_files(folder), 0)


@pytest.mark.multiprocess
def test_what_a_process_was_given_stays_while_others_clear(tmp_path):
    """However turns fall: the file of locks is removed all the time, too."""
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=remove_and_make, args=(tmp_path,)) for _ in range(3)]

    for process in processes:
        process.start()
    for process in processes:
        process.join(120)

    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_who_waits_for_a_turn_while_the_file_of_locks_goes_waits_again(tmp_path):
    path = tmp_path / "a.pixels"
    found = []
    with _disk_file._turn(path):
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR)
        path.with_suffix(".lock").unlink()
        thread = threading.Thread(target=lambda: found.append(open_file(path)))
        thread.start()
    thread.join(10)
    os.close(descriptor)

    assert path.with_suffix(".lock").exists()
    found[0].close()
