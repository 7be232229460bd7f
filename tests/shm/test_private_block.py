"""Private memory whose pages a memory file takes the place of, at the same addresses."""

import gc
import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from fastloader.errors import SharedMemoryError
from fastloader.shm import MemoryFile, PrivateBlock, gives_huge_pages
from fastloader.shm import _private_block as module

pytestmark = pytest.mark.skipif(not gives_huge_pages(), reason="needs Linux with huge pages")

SIZE = 3 * module.HUGE_BYTES + 12345


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 1 << 20)


def filled(size=SIZE):
    block = PrivateBlock(size)
    view = block.view()
    view[:] = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    return block, view


def huge_bytes_at(address):
    """Return how much of what is mapped at an address is in huge pages."""
    is_here = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            start, stop = (int(part, 16) for part in words[0].split("-"))
            is_here = start <= address < stop
        elif is_here and words[0] == "AnonHugePages:":
            return int(words[1]) * 1024
    raise AssertionError(address)


@pytest.mark.parametrize("size", [1, 4096, module.HUGE_BYTES - 1, SIZE])
def test_bytes_are_zeros_until_they_are_written(size):
    block = PrivateBlock(size)

    assert block.view().shape == (size,)
    assert not block.view().any()


def test_whole_huge_pages_are_asked_for_and_no_more():
    block, view = filled()

    assert view.ctypes.data % module.HUGE_BYTES == 0
    assert huge_bytes_at(view.ctypes.data) <= SIZE
    del block


@pytest.mark.parametrize("is_written", [False, True])
def test_a_file_takes_the_place_of_the_bytes_and_views_stay(small_pieces, is_written):
    block, view = filled()
    expected = view.copy()
    with MemoryFile.create(mmap.PAGESIZE + SIZE) as file:
        if is_written:
            file.write(mmap.PAGESIZE, expected.data)
        block.move_to(file, mmap.PAGESIZE, is_written=is_written)
        mapping = file.map()

    np.testing.assert_array_equal(expected, view)
    np.testing.assert_array_equal(expected, np.frombuffer(mapping, np.uint8)[mmap.PAGESIZE :])
    mapping[mmap.PAGESIZE + SIZE - 1] = expected[-1] ^ 1
    assert view[-1] == expected[-1] ^ 1


def test_a_file_that_is_said_to_be_written_is_not_written_again(small_pieces):
    block, view = filled()
    with MemoryFile.create(SIZE) as file:
        block.move_to(file, 0, is_written=True)

    assert not view.any()


def test_whoever_reads_while_it_is_moved_sees_the_same_bytes(small_pieces):
    block, view = filled()
    expected, is_moved, wrong = view.copy(), threading.Event(), []

    def read():
        while not is_moved.is_set():
            wrong.extend(np.flatnonzero(view != expected))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        with MemoryFile.create(SIZE) as file:
            block.move_to(file, 0, is_written=False)
    is_moved.set()
    reader.join()

    assert not wrong


def test_memory_is_given_back_with_the_last_view_wherever_it_lies(no_leaks):
    def resident_bytes():
        content = Path("/proc/self/statm").read_text(encoding="utf-8")
        return int(content.split()[1]) * mmap.PAGESIZE

    size = 64 << 20
    before = resident_bytes()
    for is_moved in (False, True):
        block = PrivateBlock(size)
        view = block.view()
        view[:] = 1
        if is_moved:
            with MemoryFile.create(size) as file:
                block.move_to(file, 0, is_written=False)
        last = view[5:6]
        del block, view
        gc.collect()
        assert last[0] == 1
        assert view_bytes_of(last) >= size
        del last
        gc.collect()
    assert resident_bytes() - before < size // 4
    no_leaks()


def view_bytes_of(view):
    while isinstance(view, np.ndarray):
        view = view.base
    return memoryview(view).nbytes


def test_a_forked_child_reads_what_was_moved_before_and_after(small_pieces):
    block, view = filled()
    expected = view.copy()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(reader, 1)  # by now the parent has moved its own
        os._exit(0 if (view == expected).all() else 1)
    with MemoryFile.create(SIZE) as file:
        block.move_to(file, 0, is_written=False)
    os.write(writer, b"x")
    os.close(reader)
    os.close(writer)

    assert os.waitpid(child, 0)[1] == 0


def test_a_place_that_is_no_page_is_an_error_and_the_bytes_stay(small_pieces):
    block, view = filled()
    expected = view.copy()
    with (
        MemoryFile.create(SIZE + 100) as file,
        pytest.raises(SharedMemoryError, match="cannot be mapped over"),
    ):
        block.move_to(file, 100, is_written=False)

    np.testing.assert_array_equal(expected, view)


def test_more_than_the_system_has_is_an_error():
    with pytest.raises(SharedMemoryError, match="the system gave none"):
        PrivateBlock(1 << 60)


@pytest.mark.parametrize(
    ("pages", "counted", "expected"),
    [
        ("always [madvise] never", "0", True),
        ("[always] madvise never", "1", True),
        ("always madvise [never]", "0", False),
        ("always [madvise] never", "2", False),
        (None, "0", False),
    ],
)
def test_huge_pages_are_told_from_the_files_of_the_system(tmp_path, pages, counted, expected):
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/overcommit_memory").write_text(f"{counted}\n")
    if pages is not None:
        (folder / "enabled").write_text(f"{pages}\n")

    assert gives_huge_pages(tmp_path) is expected
