"""Buffers of batches: asked for in one place, used again only when nobody looks at them."""

import copy
import gc
import mmap
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloader.tensors._buffers import (
    BufferPool,
    _size_class,
    allocating_scratch,
    allocating_with,
    empty_batch,
)

SHAPE = (1024, 1024)  # of float32
NUM_BYTES = 4 * 1024 * 1024


def fill(pool, value):
    tensor = pool(SHAPE, torch.float32)
    return tensor.fill_(value)


def test_empty_batch_is_torch_empty_outside_a_loader():
    batch = empty_batch((2, 3), torch.uint16)

    assert (batch.shape, batch.dtype) == ((2, 3), torch.uint16)


def test_empty_batch_uses_the_allocator_of_the_block_and_only_there():
    pool = BufferPool()

    with allocating_with(pool):
        empty_batch(SHAPE, torch.float32)
    empty_batch(SHAPE, torch.float32)

    assert pool.num_made == 1


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.int64,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
    ],
    ids=str,
)
def test_a_buffer_has_the_shape_and_dtype_asked_for(dtype):
    tensor = BufferPool()((133, 7, 1024), dtype)

    assert (tensor.shape, tensor.dtype) == ((133, 7, 1024), dtype)
    assert tensor.is_contiguous()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (4,), ()], ids=str)
def test_small_and_empty_tensors_do_not_come_from_the_pool(shape):
    pool = BufferPool()

    assert pool(shape, torch.float32).shape == shape
    assert pool.num_made == 0


def test_a_dropped_buffer_is_used_again():
    pool = BufferPool()

    for value in range(10):
        fill(pool, value)

    assert pool.num_made == 1


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[3:5, 7],
        lambda tensor: tensor.view(torch.uint8),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.numpy()[::2, 1:],
        lambda tensor: np.asarray(tensor.T).reshape(-1)[5:6].view(),
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: tensor.detach().requires_grad_(),
        lambda tensor: torch.from_numpy(tensor.numpy()),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: {"nested": [tensor.unbind()[-1]]},
    ],
    ids=[
        "tensor",
        "slice",
        "other dtype",
        "array",
        "slice of array",
        "copy of array",
        "memoryview",
        "alias with gradient",
        "round trip",
        "storage",
        "nested",
    ],
)
def test_whatever_still_looks_at_a_buffer_keeps_it_from_being_used_again(keep):
    pool = BufferPool()
    tensor = fill(pool, 1)
    kept = keep(tensor)
    expected = copy.deepcopy(look(kept))
    del tensor

    others = [fill(pool, 2) for _ in range(3)]

    assert len(others) == 3
    assert str(look(kept)) == str(expected)


def look(kept):
    """Turn what has no short form as text into what has."""
    if isinstance(kept, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8).set_(kept)
    return torch.tensor(kept.tolist()) if isinstance(kept, memoryview) else kept


def test_kept_batches_all_stay_as_they_were():
    pool = BufferPool()

    kept = [fill(pool, value) for value in range(20)]

    assert [tensor.unique().tolist() for tensor in kept] == [[value] for value in range(20)]


def test_idle_memory_is_bounded_after_many_batches_were_kept():
    pool = BufferPool()
    kept = [pool((40, 1 << 20), torch.uint8) for _ in range(6)]

    del kept
    gc.collect()

    assert pool.idle_bytes <= 4 * (45 << 20)


def test_trim_frees_sizes_that_are_no_longer_asked_for():
    pool = BufferPool()
    fill(pool, 1)
    pool((3, *SHAPE), torch.float32)
    pool.trim()
    fill(pool, 1)

    pool.trim()

    assert pool.idle_bytes == _size_class(NUM_BYTES)


def test_a_smaller_batch_takes_an_idle_buffer_of_a_larger_one_and_gives_it_back():
    pool = BufferPool()
    address = fill(pool, 1).data_ptr()

    last = pool((SHAPE[0] * 3 // 4, *SHAPE[1:]), torch.float32)
    assert last.data_ptr() == address
    assert last.untyped_storage().nbytes() == last.nbytes
    del last

    assert fill(pool, 2).data_ptr() == address
    assert pool.num_made == 1


def test_a_batch_of_less_than_half_gets_a_buffer_of_its_own():
    pool = BufferPool()
    pool((4, *SHAPE), torch.float32)

    pool((SHAPE[0] * 3 // 2, *SHAPE[1:]), torch.float32)

    assert pool.num_made == 2


def test_a_buffer_outlives_its_pool():
    pool = BufferPool()
    tensor = fill(pool, 7)

    del pool
    gc.collect()

    assert tensor.unique().tolist() == [7]


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda pool: pickle.loads(pickle.dumps(pool))]
)
def test_a_copy_of_a_pool_is_empty(again):
    pool = BufferPool()
    fill(pool, 1)

    assert again(pool).idle_bytes == 0


def test_threads_may_share_a_pool():
    pool = BufferPool()
    wrong = []

    def work(value):
        for _ in range(200):
            tensor = fill(pool, value)
            if tensor[0, 0] != value or tensor[-1, -1] != value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert pool.num_made <= 8


@given(st.integers(1 << 16, 1 << 40))
def test_a_size_class_is_whole_pages_and_wastes_an_eighth_or_a_page(num_bytes):
    size = _size_class(num_bytes)

    assert size % mmap.PAGESIZE == 0
    assert num_bytes <= size <= num_bytes + max(mmap.PAGESIZE, num_bytes // 8)
    assert _size_class(size) == size


def test_scratch_memory_is_used_again_and_not_that_of_the_loader():
    pool = BufferPool()

    with allocating_with(pool):
        with allocating_scratch():
            first = empty_batch(SHAPE, torch.float32)
            address = first.data_ptr()
            del first
            second = empty_batch(SHAPE, torch.float32)
        empty_batch(SHAPE, torch.float32)

    assert second.data_ptr() == address
    assert pool.num_made == 1


def test_a_size_that_smaller_batches_borrow_from_is_kept():
    pool = BufferPool()
    fill(pool, 1)
    pool.trim()
    pool((SHAPE[0] * 3 // 4, *SHAPE[1:]), torch.float32)  # as an epoch's last batch

    pool.trim()

    assert pool.num_made == 1
    assert pool.idle_bytes == _size_class(NUM_BYTES)


def test_a_pool_that_trims_itself_gives_back_what_is_no_longer_asked_for():
    pool = BufferPool(requests_between_trims=4)
    fill(pool, 1)

    for _ in range(9):
        pool((2, *SHAPE), torch.float32)

    assert pool.idle_bytes == 2 * NUM_BYTES
    assert pickle.loads(pickle.dumps(pool))._requests_between_trims == 4
