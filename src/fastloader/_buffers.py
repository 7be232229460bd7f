"""Where the tensors of a batch are allocated: asked for here, decided by the loader."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch

__all__ = ["Allocator", "allocating_with", "empty_batch"]

Allocator: TypeAlias = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Makes an uninitialised contiguous CPU tensor of a shape and dtype."""


class _Current(threading.local):
    allocator: Allocator | None = None


_current = _Current()


def empty_batch(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised CPU tensor for an output of `BatchedDataset.get_batch`.

    Inside a loader the memory is reused, shared or pinned as the loader needs it; outside
    one this is `torch.empty`.

    Args:
        shape: Sizes of all axes, the batch axis first.
        dtype: Element type.
    """
    allocator = _current.allocator
    if allocator is None:
        return torch.empty(tuple(shape), dtype=dtype)
    return allocator(shape, dtype)


@contextmanager
def allocating_with(allocator: Allocator | None) -> Iterator[None]:
    """Let `empty_batch` use `allocator` in this thread while the block runs."""
    previous = _current.allocator
    _current.allocator = allocator
    try:
        yield
    finally:
        _current.allocator = previous
