"""Arrays of the caller's whose pages a file takes over, or not."""

import gc
import mmap
import threading

import numpy as np
import pytest
import torch

from fastloader.machine._address_space import read_spans
from fastloader.shm import MemoryFile
from fastloader.shm import _sharing_in_place as module
from fastloader.shm._mapping_over import Call, can_map_over
from fastloader.shm._sharing_in_place import LARGE_BYTES, place_in_file, write_sharing

pytestmark = pytest.mark.skipif(not can_map_over(), reason="needs Linux")

SIZE = LARGE_BYTES + 12345


def made(size=SIZE):
    """Return an array of random bytes that the C library has mapped, if it is large."""
    return mapped(lambda: _random(size)) if size >= LARGE_BYTES else _random(size)


def mapped(make):
    """Return an array, made by `make`, that the C library has mapped.

    What tests before have freed may serve for a few arrays, which are then not mapped.
    """
    array, others = make(), []
    while len(others) < 20 and not module._is_mapped_by_malloc(
        array.ctypes.data, list(read_spans())
    ):
        others.append(array)
        array = make()
    return array


def _random(size):
    return np.random.default_rng(0).integers(0, 256, size, np.uint8)


def shared(array):
    """Write an array to a file, and return the file and where in it."""
    content = memoryview(array).cast("B")
    start = place_in_file(777, content, 64)
    file = MemoryFile.create(start + content.nbytes)
    write_sharing(file, start, content)
    return file, start


def file_bytes(array):
    """Return how many bytes of an array lie in pages of a file."""
    first, last = np.lib.array_utils.byte_bounds(array)
    return sum(
        min(span.stop, last) - max(span.start, first)
        for span in read_spans()
        if span.inode and span.start < last and first < span.stop
    )


def content_in(file, start, size):
    return np.frombuffer(file.map(), np.uint8)[start : start + size].copy()


def test_the_array_lies_in_the_file_and_is_the_same():
    array = made()
    expected, address, view = array.copy(), array.ctypes.data, array[5::7]

    file, start = shared(array)

    assert array.ctypes.data == address
    assert file_bytes(array) > SIZE - 2 * mmap.PAGESIZE
    assert np.array_equal(expected, array)
    assert np.array_equal(expected[5::7], view)
    assert np.array_equal(expected, content_in(file, start, SIZE))


def test_what_is_written_later_stays_the_process_s_own():
    array = made()
    file, start = shared(array)
    expected = array.copy()

    array += 1

    assert np.array_equal(expected + 1, array)
    assert np.array_equal(expected, content_in(file, start, SIZE))


def test_it_can_be_shared_again_after_changes():
    array = made()
    first, _ = shared(array)
    array[SIZE // 2 :] += 1
    expected = array.copy()

    file, start = shared(array)
    first.close()

    assert file_bytes(array) > SIZE - 2 * mmap.PAGESIZE
    assert np.array_equal(expected, array)
    assert np.array_equal(expected, content_in(file, start, SIZE))


def test_the_memory_is_gone_with_the_array():
    array = made()
    file, _ = shared(array)
    del file
    gc.collect()
    before = {span.inode for span in read_spans() if span.name.startswith("/memfd:fastloader")}
    del array
    gc.collect()
    after = {span.inode for span in read_spans() if span.name.startswith("/memfd:fastloader")}

    assert len(before - after) == 1


def test_memory_that_was_shared_and_freed_is_used_again_like_any_other():
    for _ in range(3):
        array = made()
        shared(array)
        del array
        gc.collect()
        assert not np.zeros(SIZE, np.uint8).any()


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.complex64])
@pytest.mark.parametrize("offset", [0, 1, 1000, 5001])
def test_parts_of_arrays_are_shared_by_whole_pages(dtype, offset):
    whole = made(2 * LARGE_BYTES).view(dtype)
    expected = whole.copy()
    part = whole[offset:]

    file, start = shared(part)

    assert file_bytes(part) > part.nbytes - 2 * mmap.PAGESIZE
    assert np.array_equal(expected.view(np.uint8), whole.view(np.uint8))
    assert np.array_equal(
        expected[offset:].view(np.uint8), content_in(file, start, part.nbytes)
    )


def test_tensors_are_shared():
    tensor = torch.from_numpy(mapped(lambda: torch.arange(SIZE, dtype=torch.int16).numpy()))
    expected = tensor.clone()

    shared(tensor.numpy())

    assert file_bytes(tensor.numpy()) > tensor.nbytes - 2 * mmap.PAGESIZE
    assert torch.equal(expected, tensor)


def in_a_map(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(made().tobytes())
    return np.memmap(path, np.uint8, "r+")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda _: made(LARGE_BYTES - 1), id="small"),
        pytest.param(in_a_map, id="file"),
        pytest.param(lambda _: np.frombuffer(mmap.mmap(-1, SIZE), np.uint8), id="map"),
        pytest.param(lambda _: np.frombuffer(bytearray(SIZE), np.uint8), id="bytearray"),
        pytest.param(lambda _: np.frombuffer(bytes(SIZE), np.uint8), id="bytes"),
        pytest.param(
            lambda _: torch.ones(SIZE, dtype=torch.uint8).share_memory_().numpy(), id="shared"
        ),
    ],
)
def test_other_memory_is_written_and_stays(tmp_path, make):
    array = make(tmp_path)
    inodes = [span.inode for span in read_spans()]

    file, start = shared(array)

    now = [span.inode for span in read_spans() if span.name.startswith("/memfd:fastloader")]
    assert set(now) <= set(inodes)
    assert np.array_equal(array, content_in(file, start, array.nbytes))


def test_another_allocator_s_memory_stays(monkeypatch):
    monkeypatch.setattr(module, "_glibc", lambda: None)
    array = made()

    shared(array)

    assert file_bytes(array) == 0


def test_memory_stays_while_a_device_is_open_and_the_reason_is_told(monkeypatch, caplog):
    caplog.set_level("DEBUG", "fastloader")
    monkeypatch.setattr(module, "find_hidden_writer", lambda: "a device is open (/dev/card)")
    array = made()

    shared(array)

    assert file_bytes(array) == 0
    assert "in memory twice" in caplog.text
    assert "a device is open (/dev/card)" in caplog.text


@pytest.mark.parametrize("is_compared", [True, False])
def test_nothing_that_a_thread_writes_is_lost(monkeypatch, is_compared):
    if not is_compared:  # then it is the look at the threads alone that keeps it
        monkeypatch.setattr(module, "_comparison", lambda *_: Call(int, (), 0))
    array = np.zeros(LARGE_BYTES // 8 + 5, np.int64)
    is_over, rounds = threading.Event(), [0]

    def add():
        while not is_over.is_set():
            rounds[0] += 1
            np.add(array, 1, out=array)  # lets other threads run

    thread = threading.Thread(target=add)
    thread.start()
    for _ in range(10):
        file, _ = shared(array)
        file.close()
    is_over.set()
    thread.join()

    assert set(array.tolist()) == {rounds[0]}


def test_nothing_is_lost_that_was_written_since_the_file_was(monkeypatch):
    array = made()
    write = MemoryFile.write

    def write_and_change(file, offset_bytes, content):
        write(file, offset_bytes, content)
        if is_first and content.nbytes == 4 << 20:
            is_first.pop()
            content[1234] ^= 1

    is_first = [True]
    expected = array.copy()
    monkeypatch.setattr(MemoryFile, "write", write_and_change)

    shared(array)

    assert np.count_nonzero(array != expected) == 1
    assert SIZE - (4 << 20) - 2 * mmap.PAGESIZE < file_bytes(array) <= SIZE - (4 << 20)


def test_a_thread_that_waits_does_not_keep_memory_from_being_shared():
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    array = made()
    shared(array)
    is_over.set()
    thread.join()

    assert file_bytes(array) > SIZE - 2 * mmap.PAGESIZE


def test_where_mapping_fails_the_bytes_stay_where_they_are(monkeypatch):
    real = module.mapping_over

    def refuse(address, num_bytes, file, start_bytes, *, private):
        return real(address, num_bytes, file, start_bytes + 1, private=private)  # no page

    monkeypatch.setattr(module, "mapping_over", refuse)
    array = made()
    expected = array.copy()

    shared(array)

    assert file_bytes(array) == 0
    assert np.array_equal(expected, array)
