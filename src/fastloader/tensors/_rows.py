"""Several batches in one: cut into its parts, and joined from the indices of many."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastloader.direct import HostRows
from fastloader.typing import Batch

__all__ = ["CUT_AT_ONCE", "Merged", "count_bytes", "cut_rows", "halve_merged", "has_rows"]

CUT_AT_ONCE = 128
"""Batches. With all of a pass, hundreds of objects, the collector of garbage would look at them each time."""


class Merged(NamedTuple):
    """Batches that were made in one call, one after the other along the first axis."""

    batch: Batch
    lengths: npt.NDArray[np.int64]
    """Samples in each; an array, which stages that map tensors take for one thing."""


def has_rows(batch: Batch, num_rows: int) -> bool:
    """Tell whether a batch is made of tensors alone, with one row for each sample.

    Args:
        batch: Tensors, or what stands for them, in dictionaries, lists, tuples and named tuples,
            or anything else.
        num_rows: Samples in the batch.
    """
    if isinstance(batch, torch.Tensor):
        return batch.ndim > 0 and len(batch) == num_rows
    if isinstance(batch, HostRows):
        return len(batch) == num_rows
    parts = _parts_of(batch)
    return bool(parts) and all(has_rows(part, num_rows) for part in parts)


def count_bytes(batch: Batch) -> int:
    """Return the bytes of all tensors of a batch that `has_rows`."""
    if isinstance(batch, torch.Tensor | HostRows):
        return batch.nbytes
    return sum(map(count_bytes, _parts_of(batch)))


def cut_rows(batch: Batch, lengths: Sequence[int]) -> Sequence[Batch]:
    """Cut a batch into batches that lie in the same memory.

    Args:
        batch: One that `has_rows`.
        lengths: Samples in each part; together those of `batch`.
    """
    if isinstance(batch, torch.Tensor):
        # Not `split`: autograd would take its results for parts of one tensor, and refuse to
        # let one of them be changed in place by something differentiable.
        return torch.unsafe_split_with_sizes(batch, lengths)
    if isinstance(batch, HostRows):
        return batch.cut(lengths)
    columns = zip(*(cut_rows(part, lengths) for part in _parts_of(batch)), strict=True)
    kind = type(batch)
    if kind is dict:
        return [dict(zip(batch, parts, strict=True)) for parts in columns]
    if kind is list:
        return list(map(list, columns))
    return list(columns) if kind is tuple else [kind(*parts) for parts in columns]


def halve_merged(merged: Merged) -> list[Merged]:
    """Return two parts of merged batches, in the same memory.

    Args:
        merged: Two batches or more.
    """
    lengths = np.array_split(merged.lengths, 2)
    parts = cut_rows(merged.batch, [int(part.sum()) for part in lengths])
    return list(map(Merged, parts, lengths))


def _parts_of(batch: Any) -> Sequence[Any]:
    kind = type(batch)
    if kind is dict:
        return list(batch.values())
    is_named = isinstance(batch, tuple) and hasattr(batch, "_fields")
    return batch if kind is list or kind is tuple or is_named else ()
