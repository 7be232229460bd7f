"""Torch's iterators, with whole batches from datasets that make them, and a device at the end."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloader._buffers import Allocator, allocating_with
from fastloader._seeding import DrawScope, draw_scope, seed_worker
from fastloader._torch_internals import (
    BaseIterator,
    InProcessIterator,
    WorkerIterator,
    pin_memory,
)
from fastloader.stages._tree import map_tensors
from fastloader.typing import Batch, BatchedDataset

__all__ = ["BatchedIterator", "SampleIterator", "SeededWorkerInit", "WorkersIterator"]


class SeededWorkerInit:
    """Seeds a worker by (base seed, rank, worker), then calls the user's own function.

    Args:
        user: The user's `worker_init_fn`.
    """

    def __init__(self, user: Callable[[int], None] | None) -> None:
        self.user = user

    def __call__(self, worker_id: int) -> None:
        """Seed worker `worker_id`."""
        seed_worker(worker_id)
        if self.user is not None:
            self.user(worker_id)


class BatchedIterator(BaseIterator):
    """One epoch of a dataset that makes whole batches, in the calling process.

    Args:
        view: The loader as torch's iterators see it.
        batched: Makes the batches.
        allocate: Makes their memory.
        scope: What random draws depend on.
        device: Where batches go.
    """

    def __init__(
        self,
        view: DataLoader[Any],
        batched: BatchedDataset,
        allocate: Allocator,
        scope: DrawScope,
        device: torch.device | None,
    ) -> None:
        super().__init__(view)
        self._batched = batched
        self._allocate = allocate
        self._scope = scope
        self._device = device

    def _next_data(self) -> Batch:
        indices = self._next_index()  # type: ignore[no-untyped-call]
        with draw_scope(self._scope), allocating_with(self._allocate):
            batch = self._batched.get_batch(indices)
        if self._pin_memory:
            batch = pin_memory(batch)  # type: ignore[no-untyped-call]
        return _moved(batch, self._device)


class SampleIterator(InProcessIterator):
    """One epoch of any other dataset, in the calling process.

    Args:
        view: The loader as torch's iterators see it.
        scope: What random draws depend on.
        device: Where batches go.
    """

    def __init__(
        self, view: DataLoader[Any], scope: DrawScope, device: torch.device | None
    ) -> None:
        with draw_scope(scope):
            super().__init__(view)
        self._scope = scope
        self._device = device

    def _next_data(self) -> Batch:
        with draw_scope(self._scope):
            batch = super()._next_data()  # type: ignore[no-untyped-call]
        return _moved(batch, self._device)


class WorkersIterator(WorkerIterator):
    """One epoch of any dataset, in torch's worker processes.

    Args:
        view: The loader as torch's iterators see it.
        device: Where batches go.
    """

    def __init__(self, view: DataLoader[Any], device: torch.device | None) -> None:
        self._device = device
        super().__init__(view)

    def _next_data(self) -> Batch:
        batch = super()._next_data()  # type: ignore[no-untyped-call]
        return _moved(batch, self._device)


def _moved(batch: Batch, device: torch.device | None) -> Batch:
    if device is None:
        return batch
    return map_tensors(batch, lambda tensor: tensor.to(device))
