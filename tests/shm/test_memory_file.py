"""Memory files: one copy of the bytes, in every kind of child process."""

import copy
import errno
import multiprocessing
import os
import pickle
import resource
import sys
from pathlib import Path

import pytest

from fastloader.errors import SharedMemoryError, UnpicklableError
from fastloader.shm import (
    MemoryFile,
    _memory_file,
    can_send_memory_files,
    collecting_memory_files,
    providing_memory_files,
)

START_METHODS = multiprocessing.get_all_start_methods()


def num_own_descriptors():
    return sum(
        "memfd:fastloader" in str(link.readlink())
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink()
    )


def shout(file, private):
    """Turn the file's text into capitals, in this process's mapping."""
    mapping = file.map(private=private)
    mapping[:] = mapping[:].upper()


def shout_from_pickle(pickled, files):
    with providing_memory_files(files):
        first, second = pickle.loads(pickled)
    assert first is second
    shout(first, private=False)


def in_child(start_method, function, *arguments):
    process = multiprocessing.get_context(start_method).Process(target=function, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    process.close()


def file_of(text):
    file = MemoryFile.create(len(text))
    file.map()[:] = text
    return file


def _write_beyond_limit(answers, writes):
    file = MemoryFile.create(8192) if writes else None
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        if file is None:
            MemoryFile.create(8192)
        else:
            file.write(4096, memoryview(bytes(100)))
    except SharedMemoryError as error:
        answers.put(str(error))


@pytest.mark.multiprocess
@pytest.mark.parametrize("writes", [False, True], ids=["made", "written"])
def test_a_file_beyond_the_limit_of_files_names_the_limit(writes):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_write_beyond_limit, args=(answers, writes))
    process.start()

    assert "ulimit -f" in answers.get()
    process.join()


def test_a_new_file_has_zeros_of_the_size_asked_for():
    with MemoryFile.create(3) as file:
        assert file.size_bytes == 3
        assert file.map()[:] == b"\0\0\0"


def test_two_mappings_see_the_same_bytes():
    with MemoryFile.create(4) as file:
        first, second = file.map(), file.map()

        first[:] = b"abcd"

        assert second[:] == b"abcd"


def test_a_private_mapping_keeps_its_writes_to_itself():
    with file_of(b"abcd") as file:
        private = file.map(private=True)

        private[:] = b"wxyz"

        assert private[:] == b"wxyz"
        assert file.map()[:] == b"abcd"


def test_a_grown_file_keeps_its_bytes_and_its_mappings():
    with file_of(b"abcd") as file:
        before = file.map()

        file.resize(8)

        assert before[:] == b"abcd"
        assert file.map()[:] == b"abcd\0\0\0\0"


def test_a_mapping_outlives_the_file():
    file = file_of(b"abcd")
    mapping = file.map()

    file.close()

    assert mapping[:] == b"abcd"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
@pytest.mark.parametrize(
    "end", [MemoryFile.close, lambda file: None], ids=["closed", "dropped"]
)
def test_no_descriptor_is_left_behind(end):
    before = num_own_descriptors()
    file = file_of(b"abcd")

    end(file)
    del file

    assert num_own_descriptors() == before


def test_a_closed_file_says_so():
    file = MemoryFile.create(1)
    file.close()
    file.close()

    assert file.is_closed
    with pytest.raises(SharedMemoryError, match="map it before `close`"):
        file.map()


@pytest.mark.parametrize("size_bytes", [0, -1, 2**70])
def test_an_impossible_size_is_an_error_and_leaks_nothing(size_bytes):
    before = num_own_descriptors() if Path("/proc/self/fd").exists() else 0

    with pytest.raises(SharedMemoryError, match=str(size_bytes)):
        MemoryFile.create(size_bytes)

    assert not before or num_own_descriptors() == before


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs a file with holes")
def test_more_than_the_address_space_is_an_error():
    with MemoryFile.create(2**62) as file, pytest.raises(SharedMemoryError, match="be mapped"):
        file.map()


def test_pickling_outside_the_start_of_a_process_is_refused():
    with MemoryFile.create(1) as file:
        assert not can_send_memory_files()
        with pytest.raises(UnpicklableError, match="while a process is being started"):
            pickle.dumps(file)
        with pytest.raises(UnpicklableError, match="while a process is being started"):
            copy.deepcopy(file)


def test_a_pickle_without_its_files_says_what_is_missing():
    with MemoryFile.create(1) as file, collecting_memory_files():
        pickled = pickle.dumps(file)

    with pytest.raises(UnpicklableError, match="memory file 0, but 0 were provided"):
        pickle.loads(pickled)


def test_a_file_pickled_twice_is_collected_once():
    with MemoryFile.create(1) as file, collecting_memory_files() as files:
        pickles = [pickle.dumps(file), pickle.dumps(file)]

        assert can_send_memory_files()
        assert len(files) == 1
        with providing_memory_files(files):
            assert [pickle.loads(pickled) for pickled in pickles] == [file, file]


def test_systems_without_memfd_get_a_file_without_a_name(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(_memory_file.tempfile, "tempdir", str(tmp_path))

    with file_of(b"abcd") as file:
        assert list(tmp_path.iterdir()) == []
        assert file.map()[:] == b"abcd"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM], ids=errno.errorcode.get)
def test_sandboxes_without_memfd_get_a_file_without_a_name(monkeypatch, tmp_path, code):
    def refuse(_name):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    monkeypatch.setattr(_memory_file.tempfile, "tempdir", str(tmp_path))

    with file_of(b"abcd") as file:
        assert file.map()[:] == b"abcd"


@pytest.mark.multiprocess
@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_child_writes_to_the_same_bytes(start_method):
    with file_of(b"abcd") as file:
        in_child(start_method, shout, file, False)

        assert file.map()[:] == b"ABCD"


@pytest.mark.multiprocess
@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_child_with_a_private_mapping_changes_nothing_here(start_method):
    with file_of(b"abcd") as file:
        in_child(start_method, shout, file, True)

        assert file.map()[:] == b"abcd"


@pytest.mark.multiprocess
@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_pickle_made_before_reaches_its_file_in_a_child(start_method):
    with file_of(b"abcd") as file:
        with collecting_memory_files() as files:
            pickled = pickle.dumps((file, file))

        in_child(start_method, shout_from_pickle, pickled, files)

        assert file.map()[:] == b"ABCD"


@pytest.mark.skipif(sys.platform == "win32", reason="looks at the mode of the descriptor")
def test_a_file_that_is_only_to_be_read_is_mapped_without_changing_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")

    with MemoryFile(os.open(path, os.O_RDONLY)) as file:
        assert file.is_read_only
        mapping = file.map()
        mapping[0] = ord("x")

    assert path.read_bytes() == b"abc"
    with MemoryFile.create(1) as file:
        assert not file.is_read_only
