"""Whole datasets on a device, where a batch is gathered in one step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Protocol, TypeGuard
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch

from fastloader.datasets._batched import (
    SubsetRows,
    TensorRows,
    WrappedRows,
    as_positions,
    is_ours,
)
from fastloader.datasets._tensor_rows import order_in_memory
from fastloader.datasets._wrapper import DatasetWrapper
from fastloader.errors import SettingsError
from fastloader.inspection._fingerprint import fingerprint
from fastloader.sampling._compact import IndexArray
from fastloader.sampling._uploaded import UploadedIndices
from fastloader.tensors._gather import as_units
from fastloader.tensors._rows import count_bytes, has_rows
from fastloader.typing import Batch, BatchedDataset

__all__ = [
    "RESIDENT_SHARE",
    "NotResidentError",
    "ResidentData",
    "StoredRows",
    "copied_parts",
    "is_copy_alone",
    "make_resident",
    "preferred_residence",
]

RESIDENT_SHARE = 0.6
"""Of the free memory of the device that a dataset may take; the model needs the rest."""

_CHUNK_BYTES = 64 << 20
_FIRST_CHUNK = 16
_MAX_DEPTH = 16  # of datasets around datasets


class NotResidentError(Exception):
    """Why a dataset is not kept on a device; never leaves the package."""


class ResidentData(ABC):
    """Samples on a device."""

    @abstractmethod
    def take(self, indices: Sequence[Any]) -> Batch:
        """Return samples as one batch on the device; what `get_batch` returns elsewhere.

        Nothing waits for the device.

        Args:
            indices: Positions in the dataset, any order, repeats allowed; at least one.

        Raises:
            IndexError: If one is outside of the dataset.
        """


def make_resident(batched: BatchedDataset, device: torch.device) -> ResidentData:
    """Copy all samples to a device, or find a copy that another loader has made.

    Each sample is read once. What wrappers do to it is done anew for each batch, on the device.

    Args:
        batched: From `as_batched`.
        device: Where to, with its index.

    Raises:
        NotResidentError: If the samples are not tensors of one shape, or do not fit.
    """
    if isinstance(batched, SubsetRows):
        return _Subset(batched.chosen, make_resident(batched.base, device), device)
    if isinstance(batched, WrappedRows):
        return _Wrapped(batched.wrapper, make_resident(batched.base, device))
    if _is_stored(batched):
        return _Converted(batched.convert_rows, make_resident(batched.stored_rows, device))
    return _shared_columns(batched, device)


def copied_parts(batched: BatchedDataset) -> Any:
    """Return what a copy on a device is made of: while it is the same, so is the copy.

    Of wrappers and conversions only which they are: they are asked anew for each batch.
    """
    if isinstance(batched, TensorRows):
        return batched.tensors
    if isinstance(batched, SubsetRows):
        return batched.chosen, copied_parts(batched.base)
    if isinstance(batched, WrappedRows):
        return id(batched.wrapper), copied_parts(batched.base)
    if _is_stored(batched):
        return id(batched), copied_parts(batched.stored_rows)
    return batched


def is_copy_alone(batched: BatchedDataset) -> bool:
    """Tell whether a batch of such data on a device follows from the copy and the indices, and from nothing else.

    Wrappers draw by seed and epoch, and may be changed by the caller.
    """
    if isinstance(batched, SubsetRows):
        return is_copy_alone(batched.base)
    if isinstance(batched, WrappedRows):
        return False
    return is_ours(batched) or not _is_stored(batched)


def preferred_residence(dataset: Any) -> str | None:
    """Return where a dataset, or the one that it is made of, asks to be kept.

    Args:
        dataset: Any; one that asks has an attribute ``preferred_residence``.
    """
    for _ in range(_MAX_DEPTH):
        if getattr(dataset, "preferred_residence", None) == "device":
            return "device"
        dataset = getattr(dataset, "dataset", None)
        if dataset is None:
            break
    return None


class StoredRows(Protocol):
    """A dataset whose batches are smaller ones, converted: these are kept on the device."""

    @property
    def stored_rows(self) -> BatchedDataset:
        """The same samples as they are stored; the same object each time."""
        ...

    def convert_rows(self, batch: Batch, /) -> Batch:
        """Return a batch of the dataset, made of one of `stored_rows`."""
        ...


def _is_stored(batched: BatchedDataset) -> TypeGuard[StoredRows]:
    # To compare with a protocol takes as long as all else at an epoch's start.
    return hasattr(type(batched), "stored_rows") and hasattr(type(batched), "convert_rows")


class _Converted(ResidentData):
    def __init__(self, convert: Callable[[Batch], Batch], base: ResidentData) -> None:
        self._convert = convert
        self._base = base

    def take(self, indices: Sequence[Any]) -> Batch:
        return self._convert(self._base.take(indices))


class _Subset(ResidentData):
    def __init__(self, chosen: Sequence[int], base: ResidentData, device: torch.device) -> None:
        self._chosen = np.asarray(chosen, dtype=np.int64)
        self._on_device = torch.from_numpy(self._chosen).to(device)
        self._base = base

    def take(self, indices: Sequence[Any]) -> Batch:
        positions = _positions(indices, len(self._chosen))
        if isinstance(indices, UploadedIndices):
            return self._base.take(indices.mapped(self._chosen, self._on_device))
        return self._base.take(IndexArray(self._chosen[positions]))


class _Wrapped(ResidentData):
    def __init__(self, wrapper: DatasetWrapper, base: ResidentData) -> None:
        self._wrapper = wrapper
        self._base = base

    def take(self, indices: Sequence[Any]) -> Batch:
        return self._wrapper.transform_batch(self._base.take(indices), indices)


class _Columns(ResidentData):
    """All samples of a dataset as one tensor for each of their fields."""

    def __init__(self, batched: BatchedDataset, device: torch.device) -> None:
        self.source = batched  # keeps its identity from being given to another object
        self._length = len(batched)
        self._device = device
        whole = _whole_batch(batched)
        if whole is None:
            self._columns: Any = _read_columns(batched, device)
            return
        _check_rows(whole, self._length)
        _check_room(count_bytes(whole), device)
        self._columns = _map_columns(whole, lambda tensor: _Column(tensor, device))

    def take(self, indices: Sequence[Any]) -> Batch:
        positions = _positions(indices, self._length)
        index = indices.on_device() if isinstance(indices, UploadedIndices) else None
        if index is None:
            index = torch.from_numpy(positions)
            if self._device.type != "cpu":
                index = index.pin_memory().to(self._device, non_blocking=True)
        return _map_columns(self._columns, lambda column: column.take(index))


_known: WeakValueDictionary[Any, _Columns] = WeakValueDictionary()


def _shared_columns(batched: BatchedDataset, device: torch.device) -> _Columns:
    # As it is now: a dataset that was changed in place is copied anew.
    key = (fingerprint(copied_parts(batched)), device)
    columns = _known.get(key)
    if columns is None:
        try:
            columns = _known[key] = _Columns(batched, device)
        except torch.OutOfMemoryError as error:  # others took it meanwhile, or it is in pieces
            raise NotResidentError(f"{device} has no memory for it at the moment") from error
    return columns


def _whole_batch(batched: BatchedDataset) -> Batch | None:
    """Return all samples as one batch, in the memory in which they lie; None if they must be read."""
    if isinstance(batched, TensorRows):
        return batched.tensors[0] if batched.is_bare else list(batched.tensors)
    ask = getattr(type(batched), "batch_in_memory", None)
    return None if ask is None else ask(batched)


def _read_columns(batched: BatchedDataset, device: torch.device) -> Any:
    """Return a `_Column` for each tensor of a batch, in the structure of a batch.

    Raises:
        NotResidentError: If the samples do not fit, or are not all tensors of one shape.
    """
    length = len(batched)
    if length == 0:
        raise NotResidentError("the dataset is empty")
    first = _read(batched, range(min(_FIRST_CHUNK, length)))
    tensors: list[torch.Tensor] = []
    _map_columns(first, tensors.append)
    row_bytes = sum(tensor.nbytes for tensor in tensors) // len(tensors[0])
    _check_room(row_bytes * length, device)
    columns = _map_columns(first, lambda tensor: _Column.empty(tensor, length, device))
    step = max(1, _CHUNK_BYTES // max(1, row_bytes))
    for start in range(0, length, step):
        rows = range(start, min(start + step, length))
        _write(columns, _read(batched, rows), slice(rows.start, rows.stop))
    return columns


def _read(batched: BatchedDataset, rows: range) -> Batch:
    try:
        batch = batched.get_batch(list(rows))
    except Exception as error:
        raise NotResidentError(
            f"samples {rows.start} to {rows.stop - 1} cannot be read as one batch "
            f"({type(error).__name__}: {error})"
        ) from error
    _check_rows(batch, len(rows))
    return batch


def _check_rows(batch: Batch, num_rows: int) -> None:
    if not has_rows(batch, num_rows):
        raise NotResidentError("its batches are not made of tensors alone")


def _write(columns: Any, batch: Batch, rows: slice) -> None:
    filled: list[_Column] = []
    _map_columns(columns, filled.append)
    parts: list[torch.Tensor] = []
    _map_columns(batch, parts.append)
    for column, part in zip(filled, parts, strict=True):
        column.write(rows, part)


def _map_columns(columns: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each column, keeping the structure: one that `has_rows` knows."""
    if isinstance(columns, dict):
        return {name: _map_columns(part, function) for name, part in columns.items()}
    if isinstance(columns, list | tuple):
        parts: Iterable[Any] = [_map_columns(part, function) for part in columns]
        kind: Any = type(columns)
        return kind(*parts) if hasattr(columns, "_fields") else kind(parts)
    return function(columns)


class _Column:
    """One field of all samples."""

    def __init__(self, tensor: torch.Tensor, device: torch.device) -> None:
        if tensor.requires_grad:
            raise NotResidentError("its tensors require gradients")
        order = order_in_memory(tensor)
        ordered = tensor if order is None else tensor.permute(order)
        self._inverse = None if order is None else [order.index(n) for n in range(tensor.ndim)]
        self._shape = tuple(ordered.shape[1:])
        self._dtype = tensor.dtype
        rows = ordered.to(device).contiguous()
        self._units = as_units(rows.view(len(rows), prod(self._shape)))
        self._rows = rows

    @classmethod
    def empty(cls, like: torch.Tensor, length: int, device: torch.device) -> "_Column":
        """Make a column to be filled, for rows like those of a tensor."""
        order = order_in_memory(like) or list(range(like.ndim))
        shape = [length, *(like.shape[axis] for axis in order[1:])]
        blank = torch.empty(shape, dtype=like.dtype, device=device)
        blank = blank.permute([order.index(axis) for axis in range(like.ndim)])
        return cls(blank, device)

    def write(self, rows: slice, part: torch.Tensor) -> None:
        """Fill some rows.

        Raises:
            NotResidentError: If they are of another type or shape.
        """
        target = self._rows[rows]
        if self._inverse is not None:
            target = target.permute(self._inverse)
        if part.dtype != self._dtype or part.shape != target.shape:
            raise NotResidentError(
                f"its samples differ: {tuple(part.shape[1:])} {part.dtype} and "
                f"{tuple(target.shape[1:])} {self._dtype}"
            )
        target.copy_(part)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Return rows, as stacking them one by one would."""
        rows = self._units.index_select(0, index)
        if rows.dtype != self._dtype:
            rows = rows.view(self._dtype)
        rows = rows.view(len(index), *self._shape)
        return rows if self._inverse is None else rows.permute(self._inverse)


def _check_room(size_bytes: int, device: torch.device) -> None:
    if device.type == "cpu":
        return
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        raise NotResidentError(f"{device.type} does not tell how much memory is free")
    free_bytes = module.mem_get_info(device)[0]
    if size_bytes > RESIDENT_SHARE * free_bytes:
        raise NotResidentError(
            f"it takes {size_bytes / 1e9:.2f} GB, more than {RESIDENT_SHARE:.0%} of the "
            f"{free_bytes / 1e9:.2f} GB that are free on {device}"
        )


def _positions(indices: Sequence[Any], length: int) -> npt.NDArray[np.int64]:
    """Return indices as an array, or raise what reading them from the dataset would.

    Raises:
        IndexError: If one is outside.
        SettingsError: If they are no whole numbers.
    """
    positions = as_positions(indices, length)
    if positions is None:
        raise SettingsError(
            f"resident='device' needs a sampler that gives whole numbers, but got "
            f"{indices[:3]!r}."
        )
    # As numbers without sign, of which those below 0 are the largest: one pass over them, not two.
    if positions.view(np.uint64).max() >= length:
        outside = positions[(positions < 0) | (positions >= length)][0]
        raise IndexError(f"index {outside} is out of range for {length} samples")
    return positions
