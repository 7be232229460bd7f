"""Which row groups of a Parquet file are read for some rows, and in which way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Job", "choose_threads", "is_worth_pages", "join_streams", "plan_jobs"]

Integers: TypeAlias = npt.NDArray[np.int64]

_FEW_ROWS = 0.5
"""Rows of a row group that are wanted, as a share of all: with more, those that are not wanted
cost less than what each row group takes to be read by page."""
_LONG_LISTS = 2 << 20
"""Numbers of a row group from which on reading by page saves more than that, even of all rows."""
_BYTE_GROUPS_PER_THREAD = 16
"""Of byte chunks Arrow holds a row group up to four times over: few at once, out of many."""
_BYTES_PER_THREAD = 128 << 20
"""Each thread costs up to 30 MB in Arrow's memory pool."""
_PAGED_BYTES_PER_THREAD = 16 << 20
"""Of large byte chunks, of which each thread holds a page."""
_SMALL_PLANE = 1024
"""Pixels of planes whose starts are so many that Arrow finds them quicker."""


@dataclass(frozen=True, slots=True)
class Job:
    """Row groups that are read one after the other."""

    groups: list[int]
    leaves: list[str]
    rows: Integers
    """Those that are wanted: what comes after the last need not be decoded."""
    piece: str
    """``"chunks"`` or ``"planes"``; empty if some images are stored as either."""


def plan_jobs(
    rows: Integers,
    in_chunks: npt.NDArray[np.bool_],
    starts: Integers,
    chunk_leaves: Sequence[str],
    plane_leaves: Sequence[str],
) -> list[Job]:
    """Return the row groups to read, together where they follow each other without a gap.

    Args:
        rows: Row numbers, ascending.
        in_chunks: Which of them are stored as chunks; the others as planes.
        starts: First row of each row group, and last the number of rows.
        chunk_leaves: Leaf columns of chunks.
        plane_leaves: Leaf columns of planes.
    """
    jobs: list[Job] = []
    groups = np.searchsorted(starts, rows, "right") - 1
    for group in np.unique(groups).tolist():
        is_here = groups == group
        some, wanted = in_chunks[is_here], rows[is_here]
        leaves = [*(chunk_leaves if some.any() else ()), *(() if some.all() else plane_leaves)]
        last = jobs[-1] if jobs else None
        if last is not None and last.leaves == leaves and last.rows[-1] + 1 == starts[group]:
            together = np.concatenate([last.rows, wanted])
            jobs[-1] = replace(last, groups=[*last.groups, group], rows=together)
        else:
            piece = "chunks" if some.all() else "" if some.any() else "planes"
            jobs.append(Job([group], leaves, wanted, piece))
    return jobs


def join_streams(
    left: Sequence[tuple[int, int]], starts: Integers
) -> Iterator[tuple[list[int], int]]:
    """Yield row groups to read as one stream, and the first row of them that is wanted.

    Args:
        left: Row groups, and the first row of each that is wanted.
        starts: First row of each row group.
    """
    groups: list[int] = []
    first_row = 0
    for group, row in left:
        if groups and (group != groups[-1] + 1 or row != starts[group]):
            yield groups, first_row
            groups = []
        if not groups:
            first_row = row
        groups.append(group)
    if groups:
        yield groups, first_row


def is_worth_pages(
    shapes: Integers, num_wanted: int, *, is_in_lists: bool, has_large_bytes: Callable[[], bool]
) -> bool:
    """Return whether a row group is read quicker by page than as a stream, which has no gaps.

    Args:
        shapes: Sizes T, C, Z, Y, X of its images.
        num_wanted: How many of them are wanted.
        is_in_lists: Whether pixels are numbers in lists.
        has_large_bytes: Whether pixels are bytes in values so large that Arrow is not as quick.
    """
    is_few = num_wanted <= _FEW_ROWS * len(shapes)
    if not is_in_lists:
        return is_few or has_large_bytes()
    is_large = shapes[:, 3:].prod(axis=1).mean() >= _SMALL_PLANE
    return bool(is_large and (is_few or shapes.prod(axis=1).sum() >= _LONG_LISTS))


def choose_threads(
    num_allowed: int,
    num_bytes: int,
    num_groups: int,
    *,
    has_bytes: bool,
    is_paged: Callable[[], bool],
) -> int:
    """Return how many row groups to read at once.

    Args:
        num_allowed: The most.
        num_bytes: Pixels to read.
        num_groups: Row groups to read.
        has_bytes: Whether chunks are bytes.
        is_paged: Tells whether whole row groups of these are read by page.
    """
    most = min(num_allowed, num_groups, num_bytes // _PAGED_BYTES_PER_THREAD)
    if most <= 1:  # a row must not pay for more
        return 1
    if is_paged():
        return most
    if has_bytes:
        num_allowed = min(num_allowed, num_groups // _BYTE_GROUPS_PER_THREAD)
    return max(1, min(num_allowed, num_bytes // _BYTES_PER_THREAD))
