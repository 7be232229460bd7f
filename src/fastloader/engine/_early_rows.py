"""Large parts of samples, written to their rows of the batch as soon as each sample is made."""

from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any

import numpy as np
import torch

from fastloader.engine._plain_parts import address_of, is_contiguous, is_plain
from fastloader.shm._past_cache import LEAST_BYTES, LEAST_ROW_BYTES, may_go_past_cache
from fastloader.tensors._arrays import TORCH_DTYPES
from fastloader.tensors._buffers import Allocator
from fastloader.threads._crew import copy_rows, rows_at
from fastloader.typing import Sample

__all__ = ["EarlyRows"]

_DTYPES = frozenset({*TORCH_DTYPES.values(), torch.bfloat16})

_CONTAINERS = {dict, list, tuple}
_MOST_PARTS = 64
"""Of a container: longer ones hold numbers or words, and take time to look through."""


class EarlyRows:
    """Takes large tensors and arrays out of samples while the processor's cache still holds them.

    The samples of a batch of 50 MB are in no cache any more when the last of them is made: all are
    written to memory, read again, and meanwhile each takes memory of its own. So each part is
    copied to its row at once, and the row stands in the sample for it. Whatever is made of the samples comes out
    the same, and where all rows of a part come together in their order, the batch is there already.

    Args:
        allocate: Makes the batches.
    """

    def __init__(self, allocate: Allocator) -> None:
        self._allocate = allocate
        self.is_worth_it = False
        """Whether batches are so large: set by who has made one."""
        self._num_samples = 0
        self._columns: dict[Any, _Column | None] = {}

    def begin(self, num_samples: int) -> Callable[[Sample], Sample] | None:
        """Begin a batch.

        Args:
            num_samples: That it will have.

        Returns:
            What takes each sample, in order, and returns one that stands for it. None where several
            threads copy, who are quicker with all samples at once.
        """
        self._columns.clear()
        self._num_samples = num_samples
        return self._moved if torch.get_num_threads() == 1 else None

    def whole(self, parts: Sequence[Any]) -> torch.Tensor | None:
        """Return the batch of parts of samples that lie in it already, if these do."""
        for place, column in self._columns.items():
            if column is not None and column.consists_of(parts):
                del self._columns[place]  # so that the batch is nobody else's any more
                return column.batch
        return None

    def _moved(self, sample: Sample, place: tuple[Any, ...] = ()) -> Sample:
        kind = type(sample)
        if kind is torch.Tensor or kind is np.ndarray:
            return self._moved_part(sample, place)
        if kind not in _CONTAINERS or len(sample) > _MOST_PARTS:
            return sample
        if kind is dict:
            return {key: self._moved(part, (*place, key)) for key, part in sample.items()}
        return kind(self._moved(part, (*place, step)) for step, part in enumerate(sample))

    def _moved_part(self, part: Any, place: tuple[Any, ...]) -> Any:
        if place not in self._columns:
            self._columns[place] = self._column_of(part)
        column = self._columns[place]
        return part if column is None else column.moved(part)

    def _column_of(self, first: Any) -> "_Column | None":
        dtype = TORCH_DTYPES.get(first.dtype, first.dtype)
        is_large = (
            first.nbytes >= LEAST_ROW_BYTES and first.nbytes * self._num_samples >= LEAST_BYTES
        )
        if not (is_large and dtype in _DTYPES and is_plain(first) and _has_own_memory(first)):
            return None
        return _Column(first, self._allocate((self._num_samples, *first.shape), dtype))


class _Column:
    """One part of all samples of a batch.

    Args:
        first: Of the first sample: a tensor or an array.
        batch: Contiguous, shape ``(samples, ...)``.
    """

    def __init__(self, first: Any, batch: torch.Tensor) -> None:
        self.batch = batch
        self._looks = type(first), first.dtype, first.shape
        is_array = type(first) is np.ndarray
        self._left: Iterator[Any] = iter(batch.numpy() if is_array else batch.unbind())
        self._rows: list[Any] = []
        self._is_past_cache = may_go_past_cache(len(batch), first.nbytes, batch.data_ptr())

    def moved(self, part: Any) -> Any:
        """Return the row that a part was copied to, or the part itself where it is unlike the first."""
        if (type(part), part.dtype, part.shape) != self._looks or not is_plain(part):
            return part
        row = next(self._left, None)
        if row is None:
            return part
        if self._is_past_cache and is_contiguous(part):
            source, target = [address_of(part)], address_of(row)
            copy_rows(rows_at(source, part.nbytes, target, is_past_cache=True), num_threads=1)
        elif type(part) is np.ndarray:
            np.copyto(row, part)
        else:
            row.copy_(part)
        self._rows.append(row)
        return row

    def consists_of(self, parts: Sequence[Any]) -> bool:
        """Return whether these are all rows of the batch, in their order."""
        return len(parts) == len(self.batch) == len(self._rows) and all(
            map(is_, parts, self._rows)
        )


def _has_own_memory(part: Any) -> bool:
    """Return whether a part was made for its sample, and is no piece of something larger, read from there."""
    if type(part) is torch.Tensor:
        return bool(part.untyped_storage().nbytes() <= 2 * part.nbytes)
    base = part.base
    return not isinstance(base, np.ndarray) or base.nbytes <= 2 * part.nbytes
