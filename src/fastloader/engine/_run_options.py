"""How one pass over the data through worker processes is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastloader.engine._counters import RunCounters
from fastloader.engine._delivery import Deliveries
from fastloader.engine._fetch import SkippedSample
from fastloader.engine._head_start import Forecast
from fastloader.engine._inprocess import BatchMaker
from fastloader.engine._stream_point import StreamPoint

__all__ = ["RunOptions"]


@dataclass(frozen=True)
class RunOptions:
    """Options of a `PoolRun`."""

    epoch: int
    base_seed: int
    in_order: bool
    prefetch_factor: int
    may_deepen: bool
    """Whether more batches may be made ahead while they are tiny, or take unlike times."""
    is_iterable: bool
    drop_last: bool
    timeout_seconds: float
    """0 waits for ever."""
    stall_seconds: float
    """After this time without a batch a warning says where the workers are."""
    restarts_workers: bool
    budget_bytes: int
    """Bound of the memory in slots that batches ahead of the consumer may take."""
    num_held: int
    """Batches that the consumer's side holds at once, if the caller keeps none."""
    live_state: Callable[[], Any]
    """Reads the state of a `LiveDataset` in the main process."""
    dataset_epoch: int | None
    """For the ``set_epoch`` of the copies of the dataset; None leaves them as they are."""
    stream_points: Mapping[int, StreamPoint]
    """Where each worker goes on with an iterable dataset; empty at the beginning."""
    next_worker: int
    """Whose turn it is at first, with an iterable dataset."""
    deliveries: Deliveries
    """Takes what became of the tasks whose batches were handed out, or that had none."""
    skipped: list[SkippedSample]
    """Takes the samples that were left out."""
    forecast: Callable[[], Forecast | None]
    """Says at the end of the order what the next run will be, if that can be told."""
    may_grow: Callable[[], bool]
    """Whether a worker that starts now would be like the others."""
    counters: RunCounters
    """Takes what happens."""
    maker: BatchMaker | None
    """Makes the batches that cannot be sent, in this process; None raises instead."""
