"""Torch's default collate, writing straight into memory that the loader has at hand."""

from collections.abc import Callable, Sequence
from math import prod
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch

from fastloader._torch_internals import collate, default_collate_fn_map
from fastloader.engine._early_rows import EarlyRows
from fastloader.engine._plain_parts import address_of, is_contiguous, is_plain
from fastloader.shm._past_cache import LEAST_BYTES, LEAST_ROW_BYTES, may_go_past_cache
from fastloader.tensors._arrays import TORCH_DTYPES, as_tensor, sharable_array
from fastloader.tensors._buffers import Allocator
from fastloader.threads._crew import copy_rows, current_crew, row_team, rows_at
from fastloader.typing import Batch, Sample

__all__ = ["CollateMap", "DefaultCollate", "collate_map_into", "install_collate_into"]

CollateMap: TypeAlias = dict[Any, Callable[..., Any]]

_STOCK_TENSOR = default_collate_fn_map[torch.Tensor]
_STOCK_ARRAY = default_collate_fn_map[np.ndarray]
_STOCK_MODULE = collate.__module__

_FEW_ELEMENTS = 1 << 15
"""Torch copies samples of up to so many by one thread, whatever the number of them or of threads."""

_PLAIN = {np.ndarray, np.memmap}
_COPIED = {torch.Tensor, *_PLAIN}


def collate_map_into(allocate: Allocator, *, is_crowded: bool = False) -> CollateMap:
    """Return torch's table of collate functions, with those for tensors, arrays and numbers replaced.

    Results equal torch's bit for bit. What the replacements do not know (nested, sparse or
    differentiable tensors, subclasses, mixed dtypes) goes to the function that stood there.

    Args:
        allocate: Makes each output.
        is_crowded: Whether other threads want the interpreter all the time: large batches do not go past
            the cache then, nor early to their rows, as each sample has to be looked at for that.
    """
    table = dict(default_collate_fn_map)
    early = None if is_crowded else EarlyRows(allocate)
    # Somebody who has put functions of their own there keeps them.
    if table[torch.Tensor] is _STOCK_TENSOR:
        table[torch.Tensor] = _TensorCollate(allocate, _STOCK_TENSOR, early)
    if table[np.ndarray] is _STOCK_ARRAY:
        table[np.ndarray] = _ArrayCollate(allocate, _STOCK_ARRAY, early)
    for kind, dtype in ((int, np.dtype(np.int64)), (float, np.dtype(np.float64))):
        if getattr(table.get(kind), "__module__", None) == _STOCK_MODULE:
            table[kind] = _NumberCollate(allocate, table[kind], kind, dtype)
    return table


def install_collate_into(allocate: Allocator) -> None:
    """Replace the functions for tensors, arrays and numbers in torch's own table.

    Args:
        allocate: As for `collate_map_into`.

    **Processes:** only in a worker process, whose every call of `default_collate` is ours:
    also those inside a collate function of the user.
    """
    default_collate_fn_map.update(collate_map_into(allocate))


class DefaultCollate:
    """`torch.utils.data.default_collate` with another table.

    Dictionaries, tuples and lists, which most samples are, are taken apart here: torch's function asks of
    each part which of its abstract classes it is.

    Args:
        table: From `collate_map_into`, or torch's own.
    """

    def __init__(self, table: CollateMap) -> None:
        self._table = table
        self.is_known = all(
            type(function) in _OURS or getattr(function, "__module__", None) == _STOCK_MODULE
            for function in table.values()
        )
        """Whether nobody has put functions of their own into the table."""
        self.early_rows: EarlyRows | None = None
        tensors = table.get(torch.Tensor)
        if self.is_known and isinstance(tensors, _TensorCollate):
            self.early_rows = tensors.early
        """Takes large parts of samples before they are all there."""

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """Return the batch of samples."""
        if not self.is_known:
            return collate(samples, collate_fn_map=self._table)
        first = samples[0]
        kind = type(first)
        function = self._table.get(kind)
        if function is not None:
            return function(samples, collate_fn_map=self._table)
        if kind is dict:
            return {key: self([one[key] for one in samples]) for key in first}
        if kind is tuple or kind is list:
            try:
                columns = [*zip(*samples, strict=True)]
            except (TypeError, ValueError):
                pass  # not alike, which is for torch to tell
            else:
                return [*map(self, columns)]
        return collate(samples, collate_fn_map=self._table)


class _TensorCollate:
    def __init__(
        self, allocate: Allocator, stock: Callable[..., Any], early: EarlyRows | None
    ) -> None:
        self._allocate = allocate
        self._stock = stock
        self.early = early
        self._stacked_bytes = getattr(allocate, "stacked_bytes", 0)

    def __call__(
        self, batch: Sequence[torch.Tensor], *, collate_fn_map: CollateMap | None = None
    ) -> Any:
        first = batch[0]
        if (
            type(first) is not torch.Tensor
            or first.layout is not torch.strided
            or first.is_nested
        ):
            return self._collate_others(batch, collate_fn_map)
        if first.nbytes * len(batch) < self._stacked_bytes:
            return torch.stack(batch)  # type: ignore[arg-type]
        if not first.is_cpu or first.is_quantized or first.requires_grad:
            return self._collate_others(batch, collate_fn_map)
        try:
            if set(map(_DTYPE, batch)) == {first.dtype}:
                return self._stack(batch)
        except (AttributeError, RuntimeError, TypeError):
            # Shapes or kinds differ, or some are differentiable: an error, or a batch, of torch's.
            pass
        return self._collate_others(batch, collate_fn_map)

    def _collate_others(
        self, batch: Sequence[torch.Tensor], collate_fn_map: CollateMap | None
    ) -> Any:
        if all(map(_is_dense, batch)):
            # As torch does it without workers. In one it makes the memory first, by what the first sample
            # is: others lose digits there, and tensors with gradients and quantized ones fail.
            return torch.stack(list(batch))
        return self._stock(batch, collate_fn_map=collate_fn_map)

    def _stack(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        early = self.early
        if early is not None and (whole := early.whole(batch)) is not None:
            return whole
        out = self._allocate((len(batch), *batch[0].shape), batch[0].dtype)
        if early is None or not _copy_large_rows(batch, out, early):
            torch.stack(list(batch), out=out)
        return out


_DTYPE = attrgetter("dtype")
_SHAPE = attrgetter("shape")


def _is_dense(sample: Any) -> bool:
    return (
        isinstance(sample, torch.Tensor)
        and sample.is_cpu
        and sample.layout is torch.strided
        and not sample.is_nested
    )


def _copy_large_rows(batch: Sequence[Any], out: torch.Tensor, early: EarlyRows) -> bool:
    """Copy large samples past the cache, where none holds the batch, and by the crew that is lent.

    Args:
        batch: Tensors or arrays of the dtype of `out`.
        out: Contiguous, shape ``(samples, ...)``.
        early: To take such samples one by one from the next batch on.

    Returns:
        False where that would gain nothing, or cannot be.
    """
    num_bytes = out.nbytes
    if num_bytes < LEAST_BYTES:
        return False
    early.is_worth_it = True
    num_threads, target, crew = torch.get_num_threads(), out.data_ptr(), current_crew()
    if crew is None:
        num_threads = min(num_threads, num_bytes // LEAST_BYTES)  # to start one takes time
    row_bytes, shape = num_bytes // len(out), out.shape[1:]
    is_past_cache = may_go_past_cache(len(out), row_bytes, target)
    is_for_crew = crew is not None and row_bytes >= LEAST_ROW_BYTES and row_team() is not None
    if not (is_past_cache or is_for_crew) or not _lie_as_in_batch(batch, shape):
        return False
    rows = rows_at([*map(address_of, batch)], row_bytes, target, is_past_cache=is_past_cache)
    copy_rows(rows, num_threads)
    return True


def _lie_as_in_batch(batch: Sequence[Any], shape: torch.Size) -> bool:
    """Return whether samples lie in memory as they are to lie in the batch."""
    return (
        set(map(type, batch)) <= _COPIED
        and set(map(_SHAPE, batch)) == {shape}
        and all(map(is_plain, batch))
        and all(map(is_contiguous, batch))
    )


class _ArrayCollate:
    def __init__(
        self, allocate: Allocator, stock: Callable[..., Any], early: EarlyRows | None
    ) -> None:
        self._allocate = allocate
        self._stock = stock
        self._early = early
        self._stacked_bytes = getattr(allocate, "stacked_bytes", 0)

    def __call__(
        self, batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None
    ) -> Any:
        first = batch[0]
        dtype, shape = first.dtype, first.shape
        torch_dtype = TORCH_DTYPES.get(dtype)
        alike = all(
            type(array) in _PLAIN and array.dtype == dtype and array.shape == shape
            for array in batch
        )
        if torch_dtype is None or not alike:
            # Only the first is known to be an array.
            arrays = [sharable_array(a) if isinstance(a, np.ndarray) else a for a in batch]
            return self._stock(arrays, collate_fn_map=collate_fn_map)
        early = self._early
        if early is not None and (whole := early.whole(batch)) is not None:
            return whole
        is_for_threads = first.size > _FEW_ELEMENTS and early is not None
        if is_for_threads and first.nbytes * len(batch) < self._stacked_bytes:
            return torch.stack([*map(as_tensor, batch)])
        out = self._allocate((len(batch), *shape), torch_dtype)
        if early is not None and _copy_large_rows(batch, out, early):
            pass
        elif is_for_threads and torch.get_num_threads() > 1:
            torch.stack([*map(as_tensor, batch)], out=out)
        elif shape and prod(shape):
            # One call without a view of each array; `np.stack` takes several times as long.
            np.concatenate(batch, out=out.numpy().reshape(-1, *shape[1:]))
        else:
            np.stack(batch, out=out.numpy())
        return out


class _NumberCollate:
    """Numbers of one kind, as torch has them: int64, or float64 whatever the default dtype.

    NumPy reads a list in a quarter of the time that `torch.tensor` takes, and where memory is not to be
    used again its array is the batch.
    """

    def __init__(
        self, allocate: Allocator, stock: Callable[..., Any], kind: type, dtype: np.dtype[Any]
    ) -> None:
        self._allocate = allocate
        self._stock = stock
        self._kind = kind
        self._dtype = dtype
        self._most_numbers = getattr(allocate, "stacked_bytes", 0) // dtype.itemsize

    def __call__(
        self, batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None
    ) -> Any:
        if set(map(type, batch)) == {self._kind}:
            try:
                if len(batch) < self._most_numbers:
                    return torch.from_numpy(np.array(batch, self._dtype))
                out = self._allocate((len(batch),), TORCH_DTYPES[self._dtype])
                out.numpy()[:] = batch
            except OverflowError:  # for torch to tell
                pass
            else:
                return out
        return self._stock(batch, collate_fn_map=collate_fn_map)


_OURS = {_TensorCollate, _ArrayCollate, _NumberCollate}
