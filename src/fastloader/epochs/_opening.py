"""An epoch of which it is known what to read, but not yet who does."""

from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch

from fastloader._torch_internals import index_sampler, reported_length
from fastloader.engine import Deliveries, FetchPlan, RunCounters, UncutDeliveries
from fastloader.epochs._epochs import BegunEpoch
from fastloader.epochs._hand import HandIterator
from fastloader.epochs._iterator import LoaderIterator
from fastloader.epochs._sample_counts import (
    regular_batch_size,
    sample_counter,
    source_counter,
)
from fastloader.sampling._drawn import DrawnBatches
from fastloader.stages import BatchStream, CopySeconds, ResidentStream
from fastloader.threads._interpreter_lock import has_interpreter_lock

__all__ = ["Opening", "deliveries_for"]


class Opening(NamedTuple):
    """An epoch of which it is known what to read, but not yet who does."""

    loader: Any
    """For its options as they are now."""
    begun: BegunEpoch
    began: float
    """When the epoch was asked for, by `time.perf_counter`."""
    device: torch.device | None
    """Where batches are copied to, if anywhere."""
    plan: FetchPlan
    deliveries: Deliveries
    """Takes what became of the batches."""

    def iterator(
        self,
        stream: BatchStream,
        *,
        processes: list[BaseProcess] | None = None,
        on_end: Callable[[bool], object] | None = None,
        counters: RunCounters | None = None,
        copy_seconds: CopySeconds | None = None,
    ) -> LoaderIterator:
        """Return the iterator over a stream of the epoch's batches."""
        loader, begun = self.loader, self.begun
        batch_size = regular_batch_size(loader)
        kind: Any = LoaderIterator
        if isinstance(stream, ResidentStream) and isinstance(self.deliveries, UncutDeliveries):
            kind = HandIterator
        iterator: LoaderIterator = kind(
            stream,
            dataset=loader.dataset,
            index_sampler=index_sampler(loader),
            reported_length=reported_length(loader),
            processes=[] if processes is None else processes,
            transform=loader.device_transform,
            on_end=on_end or (lambda _is_healthy: None),  # nothing else outlives an epoch
            deliveries=self.deliveries,
            position=begun.position,
            order=begun.order.batches,
            tally=loader.stats.begin_pass(
                self.began,
                num_warm_up=loader.num_workers * (loader.prefetch_factor or 1),
                counters=counters,
                queue=stream.queue,
                copy_seconds=copy_seconds,
                sources=source_counter(loader, begun.position),
                batch_size=batch_size,
                last_indices=begun.position.last_indices,
            ),
            count=sample_counter(loader) if batch_size is None else None,
            renew=partial(_renewed, loader, begun.order.batches)
            if begun.remind is not None
            else None,
        )
        return iterator


def deliveries_for(loader: Any) -> Deliveries:
    """Return what takes the deliveries of a pass: uncut where nobody has to look at each batch.

    Args:
        loader: The loader, for its options as they are now.
    """
    if loader.device is None and loader.resident is None:
        return deque()  # batches that no device cuts
    is_looked_at = loader.device_transform is not None or regular_batch_size(loader) is None
    return deque() if is_looked_at or not has_interpreter_lock() else UncutDeliveries()


def _renewed(
    loader: Any, order: DrawnBatches, close: Callable[[], None]
) -> LoaderIterator | None:
    if not loader._epochs.is_overtaken(loader, order_is_ended=order.is_ended):  # noqa: SLF001
        return None
    close()  # first, so that the next pass gets the same workers
    renewed: LoaderIterator = loader._get_iterator()  # noqa: SLF001
    return renewed
