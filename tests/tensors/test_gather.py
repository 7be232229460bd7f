"""Rows gathered by several threads are those that one would gather."""

import contextlib
import ctypes

import numpy as np
import pytest
import torch

from fastloader.shm._past_cache import LEAST_GATHERED_BYTES, LEAST_GATHERED_ROW_BYTES, PastCache
from fastloader.tensors._gather import (
    CREW_PART_BYTES,
    PART_BYTES,
    SHARED_BYTES,
    _quickest_for,
    gather_rows,
)
from fastloader.threads._crew import Crew, working_with

DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.complex64, torch.int64]


@pytest.fixture(params=[1, 2, 5])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make_rows(dtype, num_rows=40):
    row_elements = 3 * PART_BYTES // 30 // dtype.itemsize
    return torch.randint(0, 2, (num_rows, 2, row_elements // 2)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_those_of_indexing(dtype, num_threads, no_leaks):
    source = make_rows(dtype)
    positions = np.random.default_rng(0).integers(0, 40, 37)
    out = torch.empty((37, *source.shape[1:]), dtype=dtype)

    gathered = gather_rows(source, positions, out)

    assert gathered is out
    assert torch.equal(out.view(torch.uint8), source[positions].view(torch.uint8))


def test_rows_of_a_slice_are_found(num_threads):
    source = make_rows(torch.uint8)[:, :, ::2]
    positions = np.arange(39, -1, -1)
    out = torch.empty(source.shape, dtype=torch.uint8)

    assert torch.equal(gather_rows(source, positions, out), source.flip(0))


def test_rows_of_one_element_are_found(num_threads):
    source = torch.rand(1, 4 * PART_BYTES).t()
    positions = np.arange(len(source))[::-1].copy()
    out = torch.empty(len(source), 1)

    assert torch.equal(gather_rows(source, positions, out), source.flip(0))


@pytest.mark.parametrize("bad", [40, -1])
def test_a_position_outside_is_an_error(bad, num_threads):
    source = make_rows(torch.uint8)
    positions = np.array([*range(39), bad])

    with pytest.raises(IndexError):
        gather_rows(source, positions, torch.empty_like(source))


@pytest.fixture
def crew(num_threads):
    _quickest_for.cache_clear()
    lent = Crew(num_threads - 1)
    with working_with(lent):
        yield lent
    lent.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [0, 1], ids=["aligned", "not aligned"])
@pytest.mark.parametrize("more", [0, 3], ids=["in equal pieces", "as a whole"])
def test_every_way_that_is_tried_gives_the_rows(dtype, start, more, crew):
    row_elements = CREW_PART_BYTES // 8 // dtype.itemsize + more
    flat = torch.randint(0, 2, (start + 40 * row_elements,)).to(dtype)
    source = flat[start:].view(40, row_elements)
    positions = np.random.default_rng(0).integers(0, 40, 37)

    for _ in range(5):
        out = torch.empty((37, row_elements), dtype=dtype)
        gather_rows(source, positions, out)
        assert torch.equal(out.view(torch.uint8), source[positions].view(torch.uint8))


@pytest.mark.parametrize("num_bytes", [SHARED_BYTES - 8, SHARED_BYTES, 2 * CREW_PART_BYTES])
def test_torch_s_threads_are_tried_once_they_have_work_for_two(num_bytes, num_threads, crew):
    source = torch.zeros((8, num_bytes // 8), dtype=torch.uint8)

    for _ in range(3):  # the first one of each way starts threads
        gather_rows(source, np.arange(8), torch.empty_like(source))

    are_tried = num_threads > 1 and num_bytes >= SHARED_BYTES
    assert crew.experience == ({0, 1} if are_tried else set())


@pytest.mark.parametrize("bad", [40, -1])
@pytest.mark.parametrize("num_before", [0, 2], ids=["by torch", "by the crew"])
def test_a_position_outside_is_an_error_whoever_gathers(num_before, bad, crew):
    source = make_rows(torch.uint8)
    for _ in range(num_before):
        gather_rows(source, np.arange(40), torch.empty_like(source))

    with pytest.raises(IndexError):
        gather_rows(source, np.array([*range(39), bad]), torch.empty_like(source))


class Watched(PastCache):
    """Copies rows by the C library, and keeps their addresses."""

    def __init__(self):
        super().__init__(self._copy_all)
        self.seen = []

    def _copy_all(self, sources, row_bytes, target):
        addresses = np.frombuffer(sources, np.uint64).tolist()
        self.seen.extend(addresses)
        for place, address in enumerate(addresses):
            ctypes.memmove(target + place * row_bytes, address, row_bytes)


@pytest.fixture
def past(monkeypatch):
    watched = Watched()
    monkeypatch.setattr("fastloader.tensors._gather.past_cache", lambda: watched)
    return watched


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_batches_of_large_rows_are_gathered_past_the_cache(dtype, crew, past):
    source = torch.randint(0, 2, (40, LEAST_GATHERED_ROW_BYTES + 64)).to(dtype)
    positions = np.random.default_rng(0).integers(
        0, 40, LEAST_GATHERED_BYTES // LEAST_GATHERED_ROW_BYTES
    )
    out = torch.empty((len(positions), source.shape[1]), dtype=dtype)

    gather_rows(source, positions, out)

    assert len(past.seen) == len(positions)
    assert torch.equal(out.view(torch.uint8), source[positions].view(torch.uint8))


@pytest.mark.parametrize("bad", [40, -1])
def test_nothing_outside_is_read_past_the_cache(bad, past):
    source = torch.zeros((40, LEAST_GATHERED_ROW_BYTES), dtype=torch.uint8)
    positions = np.full(LEAST_GATHERED_BYTES // LEAST_GATHERED_ROW_BYTES, bad)

    with pytest.raises(IndexError):
        gather_rows(
            source,
            positions,
            torch.empty((len(positions), LEAST_GATHERED_ROW_BYTES), dtype=torch.uint8),
        )
    assert past.seen == []


@pytest.mark.parametrize(
    "change",
    [
        lambda source, out: (torch.view_as_complex(source.view(40, -1, 2)).conj(), None),
        lambda source, out: (torch._neg_view(source), None),
        lambda source, out: (source[:, :64].contiguous(), out),
        lambda source, out: (source.double(), out),
        lambda source, out: (source, out[:-1]),
    ],
    ids=["conjugate", "negative", "shorter rows", "other dtype", "fewer rows"],
)
def test_addresses_alone_are_told_only_of_rows_that_lie_there_as_they_are(change, past):
    source = torch.rand(40, LEAST_GATHERED_ROW_BYTES // 4)
    positions = np.arange(2 * LEAST_GATHERED_BYTES // LEAST_GATHERED_ROW_BYTES) % 40
    whole = torch.full((len(positions) + 1, source.shape[1]), 2.0)
    source, out = change(source, whole[:-1])
    if out is None:
        out = torch.empty((len(positions), *source.shape[1:]), dtype=source.dtype)

    # With one thread torch resizes what does not fit, and warns.
    with contextlib.suppress(RuntimeError, TypeError, ValueError, UserWarning):
        assert torch.equal(gather_rows(source, positions, out), source[positions])

    assert past.seen == []
    assert (whole[-1] == 2).all()
