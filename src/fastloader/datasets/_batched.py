"""Datasets that make whole batches: our protocol, and torch's own sets that can be adapted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import index as as_integer
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    ConcatDataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from fastloader.datasets._merge import UnlikeBatchesError, merge_batches
from fastloader.datasets._tensor_rows import Rows
from fastloader.datasets._wrapper import DatasetWrapper, batch_through, makes_new_batches
from fastloader.sampling._compact import IndexArray, IndexList
from fastloader.typing import Batch, BatchedDataset, Sample

__all__ = [
    "Adapter",
    "StackRows",
    "SubsetRows",
    "TensorRows",
    "WrappedRows",
    "as_batched",
    "as_positions",
    "has_independent_rows",
    "is_ours",
    "wants_workers",
]


def as_batched(dataset: Any) -> BatchedDataset | None:
    """Return `dataset` as one that makes whole batches, or None if it cannot.

    Adapted are, by their exact types, tensors and torch's `TensorDataset`, and `Subset`,
    `ConcatDataset` and `StackDataset` of what makes whole batches, and our wrappers around
    such. A class that has `get_batch` is taken as it is, unless a subclass has changed
    ``__getitem__`` alone: its batches would not show the change.
    """
    adapt = _ADAPTERS.get(type(dataset))
    if adapt is not None:
        return adapt(dataset)
    if isinstance(dataset, DatasetWrapper):
        return _adapt_wrapper(dataset)
    # The class is asked first: to compare with a protocol takes 30 us, at the start of each epoch.
    is_candidate = _keeps_up(type(dataset), "get_batch", "__getitem__")
    if not is_candidate or isinstance(dataset, IterableDataset):
        return None
    return dataset if isinstance(dataset, BatchedDataset) else None


def has_independent_rows(batched: BatchedDataset) -> bool:
    """Tell whether a batch may be cut out of a larger one.

    The protocol says so of all, but a dataset of the user's may pad a batch to its longest
    sample, say. This is known of torch's datasets and our own, but for those that say
    ``has_independent_rows = False``.
    """
    if isinstance(batched, WrappedRows) and not is_ours(batched.wrapper):
        return False
    if isinstance(batched, Adapter):
        return all(map(has_independent_rows, batched.parts()))
    return is_ours(batched) and getattr(batched, "has_independent_rows", True)


def wants_workers(batched: BatchedDataset) -> bool:
    """Tell whether making a batch is so much work that it is worth workers.

    Args:
        batched: From `as_batched`. Batches are taken to be ready in memory, but for a dataset,
            or one that it is made of, that says ``wants_workers = True``.
    """
    if isinstance(batched, Adapter):
        return any(map(wants_workers, batched.parts()))
    return getattr(batched, "wants_workers", False) is True


def is_ours(obj: object) -> bool:
    """Tell whether the class of an object is one of this package, not a subclass of the user's."""
    return type(obj).__module__.partition(".")[0] == __name__.partition(".")[0]


def _keeps_up(cls: type, batched: str, single: str) -> bool:
    """Tell whether the class has method `batched`, not older than its method `single`.

    Asked of the class: a wrapper that forwards unknown attributes has the method only in
    appearance.
    """
    for owner in cls.__mro__:
        if batched in vars(owner):
            return True
        if single in vars(owner):
            return False
    return False


class Adapter(ABC):
    """A dataset of torch's, given a `get_batch`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> Sample:
        return self._dataset[index]

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return as_batched, (self._dataset,)

    @abstractmethod
    def get_batch(self, indices: Sequence[int], /) -> Batch:
        """Return samples as one batch."""

    @abstractmethod
    def parts(self) -> Sequence[BatchedDataset]:
        """Return the datasets that this one is made of."""

    @property
    def makes_new_batches(self) -> bool:
        """Whether nobody else refers to its batches."""
        return all(map(makes_new_batches, self.parts()))

    def _collate_samples(self, indices: Sequence[Any]) -> Batch:
        """Make a batch the plain way, for what the fast way cannot or need not know."""
        return default_collate([self._dataset[index] for index in indices])


class TensorRows(Adapter):
    """A tensor, or a `TensorDataset`."""

    def __init__(self, dataset: Any, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(dataset)
        self.tensors = tensors
        self.is_bare = not isinstance(dataset, TensorDataset)
        self._length = len(tensors[0])

    @cached_property
    def rows(self) -> Sequence[Rows]:
        """Select rows of each tensor; not needed where a device does it."""
        return [Rows(tensor) for tensor in self.tensors]

    def get_batch(self, indices: Sequence[int], /) -> Batch:
        positions = as_positions(indices, self._length)
        if positions is None:
            return self._collate_samples(indices)
        batch = [rows.select(positions) for rows in self.rows]
        return batch[0] if self.is_bare else batch

    def parts(self) -> Sequence[BatchedDataset]:
        """Return nothing: there is no dataset within."""
        return ()


class SubsetRows(Adapter):
    """A `Subset`."""

    def __init__(self, subset: Subset[Any], base: BatchedDataset) -> None:
        super().__init__(subset)
        self.chosen: Any = subset.indices
        self.base = base

    def get_batch(self, indices: Sequence[int], /) -> Batch:
        in_base = self.in_base(indices)
        if in_base is None:
            return self._collate_samples(indices)
        return self.base.get_batch(in_base)

    def in_base(self, indices: Sequence[int]) -> list[int] | None:
        """Return the indices that samples have in `base`; None if only the subset can tell.

        Args:
            indices: Positions in the subset.

        Raises:
            IndexError: If one is outside.
        """
        chosen = self.chosen
        if not isinstance(chosen, (torch.Tensor, np.ndarray)):
            return [chosen[index] for index in indices]
        positions = as_positions(indices, len(chosen))
        if positions is None:
            return None
        numbers: list[int] = chosen[positions].tolist()
        return numbers

    def parts(self) -> Sequence[BatchedDataset]:
        return [self.base]


class _Concatenation(Adapter):
    def __init__(
        self, concatenation: ConcatDataset[Any], parts: Sequence[BatchedDataset]
    ) -> None:
        super().__init__(concatenation)
        self._parts = parts
        self._ends = np.array(concatenation.cumulative_sizes)
        self._length = len(concatenation)

    def get_batch(self, indices: Sequence[int], /) -> Batch:
        positions = as_positions(indices, self._length)
        if positions is None or positions.min() < 0 or positions.max() >= self._length:
            return self._collate_samples(indices)  # or raises what torch raises
        parts = np.searchsorted(self._ends, positions, side="right")
        batches, places = [], []
        for part in sorted(set(parts.tolist())):
            place = np.flatnonzero(parts == part)
            start = self._ends[part - 1] if part else 0
            wanted = IndexList(positions[place] - start)
            batches.append(self._parts[part].get_batch(wanted))
            places.append(torch.from_numpy(place))
        if len(batches) == 1:
            return batches[0]
        try:
            return merge_batches(batches, places)
        except UnlikeBatchesError:
            return self._collate_samples(indices)

    def parts(self) -> Sequence[BatchedDataset]:
        return self._parts


class StackRows(Adapter):
    """A `StackDataset`: its parts side by side, by position or by name."""

    def __init__(self, stack: StackDataset[Any], parts: Mapping[Any, BatchedDataset]) -> None:
        super().__init__(stack)
        self.named_parts = parts

    def get_batch(self, indices: Sequence[int], /) -> Batch:
        return self.join({
            name: part.get_batch(indices) for name, part in self.named_parts.items()
        })

    def join(self, batches: Mapping[Any, Batch]) -> Batch:
        """Return the batch that is made of those of the parts.

        Args:
            batches: Of each part, by name or position.
        """
        if isinstance(self._dataset.datasets, dict):
            return dict(batches)
        return list(batches.values())

    def parts(self) -> Sequence[BatchedDataset]:
        return list(self.named_parts.values())


class WrappedRows(Adapter):
    """A wrapper of ours around an adapted dataset."""

    def __init__(self, wrapper: DatasetWrapper, base: BatchedDataset) -> None:
        super().__init__(wrapper)
        self.wrapper = wrapper
        self.base = base

    def get_batch(self, indices: Sequence[int], /) -> Batch:
        return batch_through(self.wrapper, self.base, indices)

    @property
    def makes_new_batches(self) -> bool:
        return is_ours(self.wrapper) and super().makes_new_batches

    def parts(self) -> Sequence[BatchedDataset]:
        return [self.base]


def _adapt_wrapper(wrapper: DatasetWrapper) -> BatchedDataset | None:
    cls = type(wrapper)
    if _keeps_up(cls, "get_batch", "__getitem__"):  # written by the user
        return wrapper if isinstance(wrapper, BatchedDataset) else None
    base = as_batched(wrapper.dataset)
    keeps_ours = cls.__getitem__ is DatasetWrapper.__getitem__
    if (
        base is None
        or not keeps_ours
        or not _keeps_up(cls, "transform_batch", "transform_sample")
    ):
        return None
    return WrappedRows(wrapper, base)


def _adapt_tensor(tensor: torch.Tensor) -> BatchedDataset | None:
    return TensorRows(tensor, [tensor]) if _is_plain(tensor) else None


def _adapt_tensors(dataset: TensorDataset) -> BatchedDataset | None:
    tensors = dataset.tensors
    if tensors and all(map(_is_plain, tensors)):
        return TensorRows(dataset, tensors)
    return None


def _adapt_subset(subset: Subset[Any]) -> BatchedDataset | None:
    base = as_batched(subset.dataset)
    return None if base is None else SubsetRows(subset, base)


def _adapt_concatenation(concatenation: ConcatDataset[Any]) -> BatchedDataset | None:
    parts = [as_batched(dataset) for dataset in concatenation.datasets]
    known = [part for part in parts if part is not None]
    return _Concatenation(concatenation, known) if len(known) == len(parts) else None


def _adapt_stack(stack: StackDataset[Any]) -> BatchedDataset | None:
    datasets = stack.datasets
    named = datasets if isinstance(datasets, dict) else dict(enumerate(datasets))
    parts = {name: as_batched(dataset) for name, dataset in named.items()}
    known = {name: part for name, part in parts.items() if part is not None}
    return StackRows(stack, known) if len(known) == len(parts) else None


_ADAPTERS: Mapping[type, Callable[[Any], BatchedDataset | None]] = {
    torch.Tensor: _adapt_tensor,
    TensorDataset: _adapt_tensors,
    Subset: _adapt_subset,
    ConcatDataset: _adapt_concatenation,
    StackDataset: _adapt_stack,
}


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether selecting rows gives what stacking them gives."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type in {"cpu", "cuda"}
        and tensor.ndim > 0
        and not tensor.is_nested
        and not tensor.is_quantized
    )


def as_positions(indices: Sequence[Any], length: int) -> npt.NDArray[np.int64] | None:
    """Return indices as an int64 array, negative ones counted from the start.

    None stands for indices that mean something else than a row: ``tensor[True]`` or
    ``tensor[tensor([3])]`` add an axis.
    """
    if isinstance(indices, IndexArray | IndexList):
        return indices.array
    if not len(indices):
        return None
    if set(map(type, indices)) != {int}:
        if not all(map(_is_row, indices)):
            return None
        indices = [as_integer(index) for index in indices]
    positions = np.array(indices, dtype=np.int64)  # a third of the time of torch.tensor
    if positions.min() < 0:
        positions[positions < 0] += length
    return positions


def _is_row(index: Any) -> bool:
    if isinstance(index, (torch.Tensor, np.ndarray)):
        return index.ndim == 0 and index.dtype not in {torch.bool, np.dtype(np.bool_)}
    return hasattr(index, "__index__") and not isinstance(index, (bool, np.bool_))
