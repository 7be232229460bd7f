"""Rows gathered by several threads are those that one would gather."""

import contextlib

import numpy as np
import pytest
import torch

from fastloader.shm._past_cache import LEAST_GATHERED_BYTES, LEAST_GATHERED_ROW_BYTES
from fastloader.tensors import _gather
from fastloader.tensors._gather import CREW_PART_BYTES, PART_BYTES, gather_rows
from fastloader.threads._crew import Crew, row_team, working_with

DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.complex64, torch.int64]


@pytest.fixture(params=[1, 2, 5])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["compiled", "not compiled"], autouse=True)
def whether_compiled(request, monkeypatch):
    if request.param == "not compiled":
        monkeypatch.setattr(_gather, "row_team", lambda: None)
    elif row_team() is None:
        pytest.skip("was not compiled")


where_compiled = pytest.mark.parametrize("whether_compiled", ["compiled"], indirect=True)


def make_rows(dtype, num_rows=40):
    row_elements = 3 * PART_BYTES // 30 // dtype.itemsize
    return make_bits(num_rows, 2, row_elements // 2).to(dtype)


def make_bits(*shape):
    return torch.from_numpy(np.random.default_rng(1).integers(0, 2, shape, np.uint8))


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
def crew(num_threads, no_leaks):
    lent = Crew(num_threads - 1)
    with working_with(lent):
        yield lent
    lent.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [0, 1], ids=["aligned", "not aligned"])
@pytest.mark.parametrize("num_bytes", [64, CREW_PART_BYTES // 8 + 24], ids=["small", "large"])
def test_a_crew_gathers_the_rows_time_and_again(dtype, start, num_bytes, crew):
    row_elements = num_bytes // dtype.itemsize
    flat = make_bits(start + 40 * row_elements).to(dtype)
    source = flat[start:].view(40, row_elements)
    positions = np.random.default_rng(0).integers(0, 40, 37)

    for _ in range(5):
        out = torch.empty((37, row_elements), dtype=dtype)
        gather_rows(source, positions, out)
        assert torch.equal(out.view(torch.uint8), source[positions].view(torch.uint8))


@pytest.mark.parametrize("bad", [40, -1])
@pytest.mark.parametrize("num_rows", [1, 40], ids=["few rows", "many rows"])
def test_a_position_outside_is_an_error_in_a_crew(num_rows, bad, crew):
    source = make_rows(torch.uint8)
    out = torch.empty((num_rows, *source.shape[1:]), dtype=torch.uint8)
    positions = np.arange(num_rows)
    gather_rows(source, positions, out)

    with pytest.raises(IndexError, match=f"{bad} .*of 40 rows|{bad} rows|out of range"):
        gather_rows(source, np.array([*positions[:-1], bad]), out)
    assert torch.equal(gather_rows(source, positions, out), source[:num_rows])


@pytest.mark.parametrize(
    "positions",
    [np.arange(40)[::-2], np.arange(40, dtype=np.int32), np.arange(0)],
    ids=["every other", "int32", "none"],
)
def test_positions_may_be_any_array_of_integers(positions, num_threads):
    source = make_rows(torch.float32)
    out = torch.empty((len(positions), *source.shape[1:]))

    assert torch.equal(gather_rows(source, positions, out), source[positions.copy()])


def test_rows_of_nothing_are_found(num_threads):
    assert gather_rows(torch.empty(5, 0), np.arange(3), torch.empty(3, 0)).shape == (3, 0)


@pytest.fixture
def copies(monkeypatch):
    """What was copied by compiled code."""
    seen = []
    copy_rows = _gather.copy_rows

    def watched(copy, num_threads):
        seen.append(copy)
        copy_rows(copy, num_threads)

    monkeypatch.setattr(_gather, "copy_rows", watched)
    return seen


@where_compiled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_batches_of_large_rows_are_gathered_past_the_cache(dtype, crew, copies):
    source = make_bits(40, LEAST_GATHERED_ROW_BYTES + 64).to(dtype)
    positions = np.random.default_rng(0).integers(
        0, 40, LEAST_GATHERED_BYTES // LEAST_GATHERED_ROW_BYTES
    )
    out = torch.empty((len(positions), source.shape[1]), dtype=dtype)

    gather_rows(source, positions, out)

    assert [copy.is_past_cache for copy in copies] == [bool(row_team().KNOWS_PAST_CACHE)]
    assert torch.equal(out.view(torch.uint8), source[positions].view(torch.uint8))


@where_compiled
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
def test_addresses_alone_are_told_only_of_rows_that_lie_there_as_they_are(change, copies):
    source = torch.rand(40, LEAST_GATHERED_ROW_BYTES // 4)
    positions = np.arange(2 * LEAST_GATHERED_BYTES // LEAST_GATHERED_ROW_BYTES) % 40
    whole = torch.full((len(positions) + 1, source.shape[1]), 2.0)
    source, out = change(source, whole[:-1])
    if out is None:
        out = torch.empty((len(positions), *source.shape[1:]), dtype=source.dtype)

    # With one thread torch resizes what does not fit, and warns.
    with contextlib.suppress(RuntimeError, TypeError, ValueError, UserWarning):
        assert torch.equal(gather_rows(source, positions, out), source[positions])

    assert copies == []
    assert (whole[-1] == 2).all()
