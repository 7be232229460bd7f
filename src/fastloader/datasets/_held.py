"""Datasets whose batches our own code makes of what lies in memory, and whether the caller has changed that."""

from collections.abc import Hashable, Iterator
from typing import Any

import torch

from fastloader.datasets._batched import (
    Adapter,
    SubsetRows,
    TensorRows,
    WrappedRows,
    is_ours,
)
from fastloader.transforms import Transform
from fastloader.typing import BatchedDataset

__all__ = ["copied_tensors", "copies_rows", "is_held", "read_held_state"]

_VALUES = (bool, int, float, str, type(None))


def is_held(batched: BatchedDataset) -> bool:
    """Tell whether it makes no difference to a batch, nor to this process, where it is made.

    Nothing is opened or read for it, no code of the user's runs, and random numbers are those of the
    samples. So it may be made by any thread, or in a forked child.
    """
    if isinstance(batched, TensorRows):
        # Whether gradients are recorded is a matter of the thread.
        return not any(tensor.requires_grad or tensor.is_cuda for tensor in batched.tensors)
    if isinstance(batched, WrappedRows):
        transforms = getattr(batched.wrapper, "transforms", ())
        known = all(isinstance(one, Transform) and is_ours(one) for one in transforms)
        return is_ours(batched.wrapper) and known and is_held(batched.base)
    if isinstance(batched, Adapter):
        return all(map(is_held, batched.parts()))
    return is_ours(batched) and getattr(batched, "is_held", False) is True


def copies_rows(batched: BatchedDataset) -> bool:
    """Tell whether to make a batch is to copy rows of tensors, and nothing else.

    The threads that are lent for it then copy as fast as the machine can, and no other process is quicker.
    """
    if isinstance(batched, WrappedRows) or not isinstance(batched, Adapter):
        return False
    return isinstance(batched, TensorRows) or all(map(copies_rows, batched.parts()))


def copied_tensors(batched: BatchedDataset) -> Iterator[torch.Tensor]:
    """Give the tensors in memory whose rows are copied into batches.

    Args:
        batched: Of any kind; of what it is made of, only sets of tensors are known to be copied.
    """
    if isinstance(batched, TensorRows):
        yield from (tensor for tensor in batched.tensors if tensor.device.type == "cpu")
    elif isinstance(batched, Adapter):
        for part in batched.parts():
            yield from copied_tensors(part)


def read_held_state(batched: BatchedDataset) -> tuple[Hashable, ...]:
    """Return something that compares unequal once the caller has changed what batches are made of.

    That is another value of an attribute, or a change in place that torch has made of a tensor; not
    one that NumPy has made of an array which shares its memory. It takes some microseconds.

    Args:
        batched: Of which `is_held` is true.
    """
    if isinstance(batched, TensorRows):
        return tuple(map(_count_changes, batched.tensors))
    if not isinstance(batched, Adapter):
        return ()
    own: list[Hashable] = []
    if isinstance(batched, WrappedRows):
        own.extend(map(_identity, vars(batched.wrapper).values()))
    elif isinstance(batched, SubsetRows):
        own.append(len(batched.chosen))
    return (*own, *map(read_held_state, batched.parts()))


def _count_changes(tensor: torch.Tensor) -> int:
    # Inference tensors do not count their in-place changes.
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - documented


def _identity(value: Any) -> Hashable:
    """Return a plain value as it is, all else by identity."""
    return value if isinstance(value, _VALUES) else id(value)
