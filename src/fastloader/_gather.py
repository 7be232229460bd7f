"""Copies rows of a tensor into a batch, with several threads where it is large."""

from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from fastloader._crew import Crew, current_crew

__all__ = ["as_bytes", "gather_rows"]

PART_BYTES = 4 << 20
"""For each thread, at least: below it, starting the thread takes longer than the copy."""

CREW_PART_BYTES = 2 << 20
"""The same for threads that stand by: below it, waiting for the interpreter takes longer."""

SERIAL_ELEMENTS = 32768
"""Up to so many, torch uses one thread and is quicker to call."""


def gather_rows(
    source: torch.Tensor, positions: npt.NDArray[np.int64], out: torch.Tensor
) -> torch.Tensor:
    """Write ``source[positions]`` to `out`.

    Uses as many threads as torch may (`torch.set_num_threads`), those of the loader where it
    lends some. They are not torch's own, which spin while they wait for each other: where a
    core is taken by somebody else, a batch of a megabyte then takes ten times as long.

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
    rows, target = as_bytes(source), as_bytes(out)
    edges = np.linspace(0, len(positions), num_parts + 1).astype(int).tolist()

    def copy(start: int, stop: int) -> None:
        # "clip" writes straight to `out`; "raise", the default, makes a copy first.
        np.take(rows, positions[start:stop], axis=0, out=target[start:stop], mode="clip")

    jobs = [partial(copy, start, stop) for start, stop in pairwise(edges)]
    if crew is not None:
        crew.do(jobs)
        return out
    crew = Crew(num_parts - 1)
    try:
        crew.do(jobs)
    finally:
        crew.close()
    return out


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
