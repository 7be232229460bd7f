"""A pass over an iterable dataset that begins in the calling process, and may go on in a worker."""

import math
import time
from collections.abc import Callable, Iterator

from fastloader.engine._inprocess import InProcessRun
from fastloader.engine._run import PoolRun
from fastloader.sampling._drawn import Drawn
from fastloader.streams._on_demand import OnDemand
from fastloader.streams._queue_state import QueueState
from fastloader.typing import Batch

__all__ = ["StreamRun"]

FIRST_LOOK_SECONDS = 0.02
LOOK_FACTOR = 4
LAST_LOOK_SECONDS = 1.0
"""Of making batches: a worker reads all of it again, while the loop waits."""

SENDING_SECONDS = 2e-4  # about what it takes to get a batch from another process
LEAST_GAIN = 1.1


class StreamRun(OnDemand):
    """Batches of a stream that can be read anew with the same result.

    Small samples are made quicker than a worker sends them, and what it costs to make them is known
    only once some are made. A worker that goes on reads again what was read here. Whether that is worth it is
    told from the time that batches and the step of the loop take: a worker makes the one beside the other.

    Args:
        here: Makes the batches in this process.
        hand_on: Returns a run by a worker, given the number of the last batch and what is left of the order;
            None if there may be no worker.
    """

    def __init__(
        self, here: InProcessRun, hand_on: Callable[[int, Iterator[Drawn]], PoolRun | None]
    ) -> None:
        self._here = here
        self._run: InProcessRun | PoolRun = here
        self._hand_on = hand_on
        self._num_batches = 0
        self._making_seconds = 0.0
        self._next_look = FIRST_LOOK_SECONDS
        self._began = math.inf

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the pass.
        """
        if self._making_seconds >= self._next_look:
            self._look()
        if self._run is not self._here:
            return next(self._run)
        began = time.perf_counter()
        self._began = min(self._began, began)
        batch = next(self._here)
        self._making_seconds += time.perf_counter() - began
        self._num_batches += 1
        return batch

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if that would mean to wait."""
        return super().next_if_ready() if self._run is self._here else self._run.next_if_ready()

    @property
    def is_on_demand(self) -> bool:
        """Whether batches are made by the call that asks for them."""
        return self._run is self._here

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        return self._run.queue()

    def close(self) -> None:
        """Cancel what is under way."""
        self._run.close()
        self._here.close()

    def _look(self) -> None:
        making = self._making_seconds / self._num_batches
        step = (time.perf_counter() - self._began) / self._num_batches - making
        by_worker = max(making, step) + SENDING_SECONDS
        if making + step > LEAST_GAIN * by_worker:
            self._next_look = math.inf
            self._run = self._hand_on(self._num_batches - 1, self._here.order) or self._here
        elif self._next_look >= LAST_LOOK_SECONDS:
            self._next_look = math.inf
        else:
            self._next_look *= LOOK_FACTOR
