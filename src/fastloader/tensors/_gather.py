"""Copies rows of a tensor into a batch, with several threads where it is large."""

import os
import time
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from fastloader.threads._crew import Crew, current_crew
from fastloader.threads._quickest import Quickest

__all__ = ["as_bytes", "as_units", "gather_rows"]

PART_BYTES = 4 << 20
"""For each thread, at least: below it, starting the thread takes longer than the copy."""

CREW_PART_BYTES = 2 << 20
"""The same for threads that stand by: below it, waiting for the interpreter takes longer."""

SERIAL_ELEMENTS = 32768
"""Up to so many, torch uses one thread and is quicker to call."""

_process = os.getpid()


def gather_rows(
    source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor
) -> torch.Tensor:
    """Write ``source[positions]`` to `out`.

    Uses as many threads as torch may (`torch.set_num_threads`), those of the loader where it
    lends some, or torch's own, whichever were quicker lately. Torch's are two to four times as
    quick on cores of their own, as they need not wait for the interpreter. But they spin while
    they wait for each other: where a core is taken by somebody else, a batch of a megabyte
    takes ten times as long.

    Args:
        source: Rows along the first axis, on the CPU, shape ``(N, ...)``.
        positions: Rows to take, shape ``(B,)``.
        out: Contiguous, of the dtype of `source`, shape ``(B, ...)``.

    Returns:
        `out`.

    Raises:
        IndexError: If a position is outside of `source`.
    """
    is_small = out.numel() <= SERIAL_ELEMENTS
    if is_small or not source.is_contiguous() or not _are_inside(positions, len(source)):
        return torch.index_select(source, 0, torch.from_numpy(positions), out=out)
    crew = current_crew()
    part_bytes = PART_BYTES if crew is None else CREW_PART_BYTES
    num_parts = min(torch.get_num_threads(), out.nbytes // part_bytes, len(positions)) or 1
    if crew is not None:
        if num_parts > 1 and os.getpid() == _process:
            _gather_quickly(source, positions, out, crew, num_parts)
        else:
            _gather_by_crew(source, positions, out, crew, num_parts)
        return out
    crew = Crew(num_parts - 1)
    try:
        _gather_by_crew(source, positions, out, crew, num_parts)
    finally:
        crew.close()
    return out


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
        _gather_by_torch(source, positions, out)
    else:
        _gather_by_crew(source, positions, out, crew, num_parts)
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
    units, target = (as_units(rows.view(len(rows), -1)) for rows in (source, out))
    if units.dtype != target.dtype:  # one of them begins within a larger unit
        units, target = source, out
    torch.index_select(units, 0, torch.from_numpy(positions), out=target)


def _gather_by_crew(
    source: torch.Tensor,
    positions: npt.NDArray[np.int64],
    out: torch.Tensor,
    crew: Crew,
    num_parts: int,
) -> None:
    rows, target = as_bytes(source), as_bytes(out)
    edges = np.linspace(0, len(positions), num_parts + 1).astype(int).tolist()

    def copy(start: int, stop: int) -> None:
        # "clip" writes straight to `out`; "raise", the default, makes a copy first.
        np.take(rows, positions[start:stop], axis=0, out=target[start:stop], mode="clip")

    crew.do([partial(copy, start, stop) for start, stop in pairwise(edges)])


def _are_inside(positions: npt.NDArray[np.int64], length: int) -> bool:
    return bool(positions.min() >= 0 and positions.max() < length)


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
