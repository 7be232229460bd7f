"""How one pass over the data through worker processes is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastloader.engine._fetch import SkippedSample
from fastloader.engine._inprocess import BatchMaker

__all__ = ["RunOptions"]


@dataclass(frozen=True)
class RunOptions:
    """Options of a `PoolRun`."""

    epoch: int
    base_seed: int
    in_order: bool
    prefetch_factor: int
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
    first_number: int
    """Number of the first batch; more than 0 when an epoch is resumed."""
    live_state: Callable[[], Any] | None
    """Reads the state of a `LiveDataset` in the main process."""
    skipped: list[SkippedSample]
    """Takes the samples that were left out."""
    maker: BatchMaker | None
    """Makes the batches that cannot be sent, in this process; None raises instead."""
