"""Copies rows of a tensor into a batch, with several threads where it is large."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.shm._past_cache import may_go_past_cache
from fastloader.tensors._arrays import TORCH_DTYPES
from fastloader.threads._crew import RowCopy, copy_rows, current_crew, row_team, share_out
from fastloader.threads._openmp import end_teams_before_forks

__all__ = ["as_bytes", "as_units", "gather_rows"]

PART_BYTES = 4 << 20
"""For each thread, at least: below it, starting the thread takes longer than the copy."""

CREW_PART_BYTES = 2 << 20
"""The same for threads that stand by: below it, waiting for the interpreter takes longer."""

TEAM_PART_BYTES = 256 << 10
"""The same for those that wait for rows in C, without the interpreter."""

SERIAL_ELEMENTS = 32768
"""Up to so many, torch uses one thread and is quicker to call."""

FEW_ELEMENTS = 8
"""Of a row: torch copies such without calling a function for each."""

_OF_NUMPY = frozenset(TORCH_DTYPES.values())


def gather_rows(
    source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor
) -> torch.Tensor:
    """Write ``source[positions]`` to `out`.

    Uses as many threads as torch may (`torch.set_num_threads`), those of the loader where it
    lends some (one where the batch is small). Where it was compiled, they take the rows portion by portion
    (`RowCopy`), past the cache if none holds them.

    Args:
        source: Rows along the first axis, on the CPU, shape ``(N, ...)``.
        positions: Rows to take, shape ``(B,)``.
        out: Contiguous, of the dtype of `source`, shape ``(B, ...)``.

    Returns:
        `out`.

    Raises:
        IndexError: If a position is outside of `source`.
    """
    is_small = out.numel() <= max(SERIAL_ELEMENTS, len(positions) * FEW_ELEMENTS)
    if is_small or not source.is_contiguous():
        _select(source, positions, out)
    elif row_team() is not None and _lies_there(source, len(positions), out):
        _copy(source, positions, out)
    else:
        _gather_by_crew(source, positions, out)
    return out


def _lies_there(source: torch.Tensor, num_rows: int, out: torch.Tensor) -> bool:
    """Tell whether the bytes of `out` are to be those of rows of `source`; others are left to torch."""
    return (
        out.dtype is source.dtype
        and out.shape == (num_rows, *source.shape[1:])
        and not (source.is_conj() or source.is_neg())
    )


def _copy(source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor) -> None:
    num_bytes, target = out.nbytes, out.data_ptr()
    row_bytes = num_bytes // len(positions)
    part_bytes = PART_BYTES if current_crew() is None else TEAM_PART_BYTES
    copy = RowCopy(
        source.data_ptr(),
        row_bytes,
        source.size(0),
        np.ascontiguousarray(positions, np.int64),
        row_bytes,
        target,
        may_go_past_cache(len(positions), row_bytes, target, is_gathered=True),
    )
    copy_rows(copy, min(torch.get_num_threads(), num_bytes // part_bytes) or 1)


def _select(source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor) -> None:
    if out.numel() > SERIAL_ELEMENTS and torch.get_num_threads() > 1:
        end_teams_before_forks()
    torch.index_select(source, 0, torch.from_numpy(positions), out=out)


def _gather_by_crew(
    source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor
) -> None:
    if positions.min() < 0 or positions.max() >= len(source):
        raise IndexError(
            f"positions from {positions.min()} to {positions.max()} of {len(source)} rows: expected "
            f"0 to {len(source) - 1}."
        )
    rows, target = _as_array(source), _as_array(out)

    def copy(start: int, stop: int) -> None:
        # "clip" writes straight to `out`; "raise", the default, makes a copy first.
        np.take(rows, positions[start:stop], axis=0, out=target[start:stop], mode="clip")

    part_bytes = PART_BYTES if current_crew() is None else CREW_PART_BYTES
    num_parts = min(torch.get_num_threads(), out.nbytes // part_bytes, len(positions)) or 1
    share_out(len(positions), num_parts, copy)


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
