"""Batches of data in host memory whose large rows a device is to read by itself."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from fastloader.datasets._batched import StackRows, SubsetRows, TensorRows, as_positions
from fastloader.datasets._tensor_rows import Rows, order_in_memory
from fastloader.direct import HostRows
from fastloader.typing import Batch, BatchedDataset

__all__ = [
    "LEAST_BYTES",
    "LEAST_ROW_BYTES",
    "UNIT_BYTES",
    "DirectRows",
    "ImagesInMemory",
    "MemoryOf",
]

LEAST_ROW_BYTES = 512
"""Of rows that a device reads by itself: it waits too long for smaller ones, one after the other."""

LEAST_BYTES = 16 << 20
"""Of a tensor: less is gathered from the processor's cache."""

UNIT_BYTES = 4
"""That divide addresses and sizes of all rows; the device would read single bytes slower."""


class _Memory(Protocol):
    @property
    def is_locked(self) -> bool:
        """Whether a device can copy from it now."""
        ...

    @property
    def obstacle(self) -> str | None:
        """Why it was not locked, if that was tried."""
        ...

    def lock_behind(self) -> None:
        """Start to lock it."""
        ...

    def copy_rows(
        self,
        rows: int,
        stride_bytes: int,
        positions: npt.NDArray[np.int64],
        target: torch.Tensor,
        /,
    ) -> bool:
        """Queue copies of rows; False if it cannot be read."""
        ...


MemoryOf: TypeAlias = Callable[[torch.Tensor], _Memory]
"""Returns the memory behind a tensor."""


class ImagesInMemory(Protocol):
    """A dataset whose batches are rows of one tensor, and something beside them."""

    def images_in_memory(self) -> torch.Tensor | None:
        """Return that tensor as it is now; None if batches are not its rows."""
        ...

    def batch_around(self, images: Any, indices: Sequence[int], /) -> Batch:
        """Return the batch of which the images are here already."""
        ...


class DirectRows:
    """Makes batches of a dataset in which `HostRows` stand for tensors of large rows.

    Known are tensors, `TensorDataset`, `ImagesInMemory`, and `Subset` and `StackDataset` of them.

    Args:
        batched: From `as_batched`.
        memory_of: Finds what locks the memory of a tensor.
        before: Of an earlier pass, whose tensors need not be looked at again.
    """

    def __init__(
        self,
        batched: BatchedDataset,
        memory_of: MemoryOf,
        before: "DirectRows | None" = None,
    ) -> None:
        self._batched = batched
        self._columns: dict[int, _Column] = {}
        """By the identity of the tensor, or of the dataset that has images."""
        known = {} if before is None else before._known  # noqa: SLF001 - of this class
        self._known: dict[Any, _Column | None] = {}
        """By the place and form of the tensor; None of one that is not suited."""
        for source, tensor in _sources_of(batched):
            key = _place_and_form(tensor)
            if key in known:
                column = known[key]
            elif _is_suited(tensor):
                column = _Column(tensor, memory_of(tensor))
            else:
                column = None
            self._known[key] = column
            if column is not None:
                self._columns[id(source)] = column

    def __bool__(self) -> bool:
        """Whether there is any tensor of large rows."""
        return bool(self._columns)

    def lock_behind(self) -> None:
        """Start to lock the memory of all such tensors that is not locked."""
        for column in self._columns.values():
            column.memory.lock_behind()

    @property
    def obstacles(self) -> list[str]:
        """Why memory was not locked, though that was tried."""
        memories = (column.memory for column in self._columns.values())
        return [memory.obstacle for memory in memories if memory.obstacle is not None]

    @property
    def is_ready(self) -> bool:
        """Whether a device can read one of them now."""
        return any(column.memory.is_locked for column in self._columns.values())

    @property
    def fixed_bytes(self) -> int | None:
        """Of images that a dataset has decoded, to which nobody writes; None if a tensor is the caller's."""
        base = self._batched
        while isinstance(base, SubsetRows):
            base = base.base
        column = self._columns.get(id(base))
        return column.num_bytes if column is not None and _has_images(base) else None

    def take(self, indices: Sequence[Any]) -> Batch | None:
        """Return samples as one batch, None if only the dataset itself can make it.

        Args:
            indices: Positions in the dataset, any order, repeats allowed.
        """
        return self._take(self._batched, indices)

    def _take(self, batched: BatchedDataset, indices: Sequence[Any]) -> Batch | None:
        if isinstance(batched, SubsetRows):
            in_base = batched.in_base(indices)
            return None if in_base is None else self._take(batched.base, in_base)
        if isinstance(batched, StackRows):
            parts = {
                name: self._take(part, indices) for name, part in batched.named_parts.items()
            }
            is_whole = all(part is not None for part in parts.values())
            return batched.join(parts) if is_whole else None
        positions = as_positions(indices, len(batched))
        if positions is None or positions.min() < 0 or positions.max() >= len(batched):
            return None  # or raises what the dataset raises
        if isinstance(batched, TensorRows):
            pairs = zip(batched.tensors, batched.rows, strict=True)
            batch = [
                self._rows_of(tensor, positions) or rows.select(positions)
                for tensor, rows in pairs
            ]
            return batch[0] if batched.is_bare else batch
        images = self._rows_of(batched, positions)
        if images is None or not _has_images(batched):
            return None
        return batched.batch_around(images, indices)

    def _rows_of(self, source: object, positions: npt.NDArray[np.int64]) -> HostRows | None:
        column = self._columns.get(id(source))
        if column is None or not column.memory.is_locked:
            return None
        return HostRows(column, positions)


def _sources_of(batched: BatchedDataset) -> Iterator[tuple[object, torch.Tensor]]:
    if isinstance(batched, TensorRows):
        for tensor in batched.tensors:
            yield tensor, tensor
    elif isinstance(batched, SubsetRows | StackRows):
        for part in batched.parts():
            yield from _sources_of(part)
    elif _has_images(batched):
        images = batched.images_in_memory()
        if images is not None:
            yield batched, images


def _has_images(batched: BatchedDataset) -> TypeGuard[ImagesInMemory]:
    # To compare with a protocol takes ten times as long, for each batch.
    return hasattr(type(batched), "images_in_memory")


def _place_and_form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return something that is equal for tensors of the same elements, for as long as one of them is kept."""
    kind = (tensor.dtype, tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
    place = (tensor.device, tensor.data_ptr() if tensor.device.type == "cpu" else id(tensor))
    return place, tensor.shape, tensor.stride(), kind


def _is_suited(tensor: torch.Tensor) -> bool:
    """Tell whether rows are plain bytes, each in one piece, and worth it."""
    if tensor.device.type != "cpu" or tensor.requires_grad or len(tensor) == 0:
        return False
    if tensor.is_conj() or tensor.is_neg() or tensor.nbytes < LEAST_BYTES:
        return False
    ordered = _in_order(tensor)
    row, stride_bytes = ordered[0], ordered.stride(0) * tensor.itemsize
    has_units = not any(
        size % UNIT_BYTES for size in (row.nbytes, stride_bytes, row.data_ptr())
    )
    return has_units and row.nbytes >= LEAST_ROW_BYTES and row.is_contiguous()


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    order = order_in_memory(tensor)
    return tensor if order is None else tensor.permute(order)


class _Column:
    """A tensor of large rows.

    Args:
        tensor: The rows.
        memory: Behind them.
    """

    def __init__(self, tensor: torch.Tensor, memory: _Memory) -> None:
        order = order_in_memory(tensor)
        self._inverse = None if order is None else [order.index(n) for n in range(tensor.ndim)]
        self._tensor = _in_order(tensor)
        self._gathered = Rows(tensor)
        self.memory = memory
        self.row_bytes = self._tensor[0].nbytes
        self.num_bytes = tensor.nbytes

    def copy_to(self, device: torch.device, positions: npt.NDArray[np.int64]) -> torch.Tensor:
        tensor = self._tensor
        shape = (len(positions), *tensor.shape[1:])
        copied = torch.empty(shape, dtype=tensor.dtype, device=device)
        stride_bytes = tensor.stride(0) * tensor.itemsize
        if not self.memory.copy_rows(tensor.data_ptr(), stride_bytes, positions, copied):
            return self._gathered.select(positions).to(device)
        return copied if self._inverse is None else copied.permute(self._inverse)
