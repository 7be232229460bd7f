"""A pass whose first batches are made in the calling process, before there are workers."""

import time
from collections.abc import Callable

from fastloader._queue_state import QueueState
from fastloader.engine._inprocess import InProcessRun
from fastloader.engine._run import PoolRun
from fastloader.typing import Batch

__all__ = ["BegunHereRun"]

MOST_CPU_SECONDS = 0.02
"""About what it takes to start workers: a pass, or the rest of one, that is made in this time needs
none. While others have the cores both take longer."""


class BegunHereRun:
    """A stream of the batches of one pass, of which workers make those that take longer to come.

    Args:
        first: Makes batches here; it and the run that goes on share an order and deliveries.
        go_on: Starts workers, and returns their run.
        num_batches: Of the pass; None if that is not known.
    """

    def __init__(
        self, first: InProcessRun, go_on: Callable[[], PoolRun], num_batches: int | None
    ) -> None:
        self._first = first
        self._go_on = go_on
        self._num_batches = num_batches
        self._num_made = 0
        self._cpu_seconds = 0.0
        self._run: PoolRun | None = None

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the pass.
        """
        run = self._run
        if run is None and self._stays_here():
            started = time.thread_time()
            batch = next(self._first)
            self._cpu_seconds += time.thread_time() - started
            self._num_made += 1
            return batch
        if run is None:
            run = self._run = self._go_on()
        return next(run)

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if that would mean to wait."""
        if self._run is not None:
            return self._run.next_if_ready()
        return self._first.next_if_ready() if self._stays_here() else []

    def _stays_here(self) -> bool:
        if self._cpu_seconds < MOST_CPU_SECONDS:
            return True
        if self._num_batches is None:
            return False
        num_left = self._num_batches - self._num_made
        return self._cpu_seconds * num_left < MOST_CPU_SECONDS * self._num_made

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        return (self._run or self._first).queue()

    def close(self) -> None:
        """Cancel what is under way."""
        self._first.close()
        if self._run is not None:
            self._run.close()
