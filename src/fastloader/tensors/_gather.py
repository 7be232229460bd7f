"""Copies rows of a tensor into a batch, with several threads where it is large."""

import os
import time
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.shm._past_cache import LEAST_GATHERED_BYTES, PastCache, past_cache
from fastloader.tensors._arrays import TORCH_DTYPES
from fastloader.threads._crew import Crew, current_crew, share_out
from fastloader.threads._openmp import end_teams_before_forks
from fastloader.threads._quickest import Quickest

__all__ = ["as_bytes", "as_units", "gather_rows"]

PART_BYTES = 4 << 20
"""For each thread, at least: below it, starting the thread takes longer than the copy."""

CREW_PART_BYTES = 2 << 20
"""The same for threads that stand by: below it, waiting for the interpreter takes longer."""

SERIAL_ELEMENTS = 32768
"""Up to so many, torch uses one thread and is quicker to call."""

SHARED_BYTES = 2 * SERIAL_ELEMENTS * 8
"""From here on torch has work for two threads, whose start takes them some microseconds."""

_OF_NUMPY = frozenset(TORCH_DTYPES.values())

_process = os.getpid()


def gather_rows(
    source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor
) -> torch.Tensor:
    """Write ``source[positions]`` to `out`.

    Uses as many threads as torch may (`torch.set_num_threads`), those of the loader where it
    lends some (one where the batch is small), or torch's own, whichever were quicker lately. Batches
    that no cache holds are written past it, by threads of the loader, where that was compiled.
    Torch's are two to four times as quick on cores of their own, as they need not wait for the
    interpreter. But they spin while they wait for each other: where a core is taken by somebody
    else, a batch of a megabyte takes ten times as long.

    Args:
        source: Rows along the first axis, on the CPU, shape ``(N, ...)``.
        positions: Rows to take, shape ``(B,)``.
        out: Contiguous, of the dtype of `source`, shape ``(B, ...)``.

    Returns:
        `out`.

    Raises:
        IndexError: If a position is outside of `source`.
    """
    num_threads = torch.get_num_threads()
    if out.numel() <= SERIAL_ELEMENTS:
        return _select(source, positions, out)
    if not source.is_contiguous():
        if num_threads > 1:
            end_teams_before_forks()
        return _select(source, positions, out)
    past = _past_cache_for(source, len(positions), out)
    if num_threads == 1 and past is None:
        return _select(source, positions, out)
    crew = current_crew()
    part_bytes = PART_BYTES if crew is None else CREW_PART_BYTES
    num_parts = min(num_threads, out.nbytes // part_bytes, len(positions)) or 1
    if past is not None:
        _gather_past_cache(source, positions, out, past, num_parts)
        return out
    may_share = out.nbytes >= SHARED_BYTES and os.getpid() == _process
    if crew is not None and may_share:
        _gather_quickly(source, positions, out, crew, num_parts)
    else:
        _gather_by_crew(source, positions, out, num_parts)
    return out


def _past_cache_for(source: torch.Tensor, num_rows: int, out: torch.Tensor) -> PastCache | None:
    past = past_cache()
    if past is None or out.nbytes < LEAST_GATHERED_BYTES:
        return None
    # It gets addresses alone: what does not fit, or is not what lies in memory, is left to torch.
    are_same_bytes = (
        out.dtype is source.dtype
        and out.shape == (num_rows, *source.shape[1:])
        and not (source.is_conj() or source.is_neg())
    )
    suits = are_same_bytes and past.suits(
        num_rows, out.nbytes // num_rows, out.data_ptr(), is_gathered=True
    )
    return past if suits else None


def _gather_quickly(
    source: torch.Tensor,
    positions: npt.NDArray[np.int64],
    out: torch.Tensor,
    crew: Crew,
    num_parts: int,
) -> None:
    quickest = _quickest_for(out.nbytes // len(out))
    way = quickest.choose()
    start = time.perf_counter()
    if way == 0:
        end_teams_before_forks()
        _gather_by_torch(source, positions, out)
    else:
        _gather_by_crew(source, positions, out, num_parts)
    if way in crew.experience:
        quickest.note(way, time.perf_counter() - start, out.nbytes)
    else:  # has started threads, which the next times need not
        crew.experience.add(way)


@lru_cache(maxsize=64)
def _quickest_for(_row_bytes: int) -> Quickest:
    return Quickest(2)


def _gather_by_torch(
    source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor
) -> None:
    if out.numel() < len(out) * SERIAL_ELEMENTS:
        _select(source, positions, out)
        return
    # Torch shares out each row that is longer by itself, and waits for its threads after each.
    units, target = (as_units(rows.view(len(rows), -1)) for rows in (source, out))
    if units.dtype != target.dtype:  # one of them begins within a larger unit
        units, target = (rows.view(len(rows), -1) for rows in (source, out))
    num_pieces = _count_pieces(target.shape[1])
    pieces = positions[:, None] * num_pieces + np.arange(num_pieces)
    units, target = (rows.view(len(rows) * num_pieces, -1) for rows in (units, target))
    _select(units, pieces.reshape(-1), target)


@lru_cache(maxsize=64)
def _count_pieces(num_elements: int) -> int:
    """Return into how many equal parts to cut a row so that they are short; 1 if it cannot be."""
    fewest = num_elements // SERIAL_ELEMENTS + 1
    return next((n for n in range(fewest, 16 * fewest) if num_elements % n == 0), 1)


def _select(
    source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor
) -> torch.Tensor:
    return torch.index_select(source, 0, torch.from_numpy(positions), out=out)


def _gather_by_crew(
    source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor, num_parts: int
) -> None:
    _check(positions, source)
    rows, target = _as_array(source), _as_array(out)

    def copy(start: int, stop: int) -> None:
        # "clip" writes straight to `out`; "raise", the default, makes a copy first.
        np.take(rows, positions[start:stop], axis=0, out=target[start:stop], mode="clip")

    share_out(len(positions), num_parts, copy)


def _gather_past_cache(
    source: torch.Tensor,
    positions: npt.NDArray[np.int64],
    out: torch.Tensor,
    past: PastCache,
    num_parts: int,
) -> None:
    _check(positions, source)
    row_bytes = out.nbytes // len(out)
    addresses = (source.data_ptr() + row_bytes * positions).tolist()
    past.copy_rows(addresses, row_bytes, out.data_ptr(), num_parts)


def _check(positions: npt.NDArray[np.int64], source: torch.Tensor) -> None:
    if positions.min() < 0 or positions.max() >= len(source):
        raise IndexError(
            f"positions from {positions.min()} to {positions.max()} of {len(source)} rows: expected "
            f"0 to {len(source) - 1}."
        )


def _as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    # The second way takes 4 us.
    return tensor.numpy() if tensor.dtype in _OF_NUMPY else as_bytes(tensor)


def as_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """View rows as bytes, since NumPy lacks some dtypes of torch's.

    Args:
        tensor: Contiguous, on the CPU, shape ``(N, ...)``, not empty.

    Returns:
        uint8, shape ``(N, bytes of a row)``.
    """
    # Flat first: an axis of one element may have any stride, and then has no view as bytes.
    rows: npt.NDArray[np.uint8] = (
        tensor.reshape(-1).view(torch.uint8).view(len(tensor), -1).numpy()
    )
    return rows


def as_units(rows: torch.Tensor) -> torch.Tensor:
    """View rows as integers, the largest that divide them.

    Torch copies a row element by element, on the CPU and in its kernels: with single bytes that
    reaches a fraction of the memory's speed.

    Args:
        rows: Contiguous, shape ``(N, M)``.

    Returns:
        Shape ``(N, units of a row)``; rows of elements larger than that stay as they are.
    """
    row_bytes = rows.shape[1] * rows.itemsize
    if not row_bytes:
        return rows
    for kind in (torch.int64, torch.int32, torch.int16):
        start_bytes = int(rows.storage_offset()) * rows.itemsize
        if row_bytes % kind.itemsize == 0 == start_bytes % kind.itemsize:
            return rows if rows.itemsize > kind.itemsize else rows.view(kind)
    return rows.view(torch.uint8)
