"""How many rows of a table to decode at once."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["rows_at_once", "rows_per_read"]

Integers: TypeAlias = npt.NDArray[np.int64]

_SHARE = 64
_MIN_BYTES = 4 << 20
_MIN_LIST_BYTES = 2 << 20
"""Of pixels in lists, of which their pages, numbers in 32 bits and the pixels are held at once."""
_MAX_BYTES = 8 << 20
_READ_SHARE = 48
_MIN_READ_BYTES, _MAX_READ_BYTES = 15 << 19, 12 << 20
"""Pixels asked for by one call, the most where there is much to keep: each call costs a millisecond or
two, but libraries hold several times as many meanwhile. Half of it where a batch is written beside."""


def rows_at_once(num_bytes: Integers, num_threads: int = 1, *, is_in_lists: bool) -> int:
    """Return how many rows each thread should hold decoded.

    Each batch costs some 0.4 ms beside its pixels, so that batches of 2 MiB take up to a third
    longer than those of 8. But libraries take up to fifteen times as much while they decode
    lists, which would show in peak memory where there is less to keep.

    Args:
        num_bytes: Pixels of each row that is wanted, at least one.
        num_threads: Threads that decode at the same time.
        is_in_lists: Whether pixels are numbers in lists.
    """
    min_bytes = _MIN_LIST_BYTES if is_in_lists else _MIN_BYTES
    batch_bytes = np.clip(num_bytes.sum() // _SHARE, min_bytes, _MAX_BYTES)
    return int(max(1, batch_bytes // num_threads // num_bytes.mean()))


def rows_per_read(mean_bytes: float, sum_bytes: float, num_held: int) -> int:
    """Return how many rows to ask a table for by one call.

    Args:
        mean_bytes: Of the pixels of an image.
        sum_bytes: Of the pixels of all images that are wanted.
        num_held: Batches to be held at once.
    """
    read_bytes = min(max(sum_bytes / _READ_SHARE, _MIN_READ_BYTES), _MAX_READ_BYTES)
    return max(1, int(read_bytes / num_held // mean_bytes))
