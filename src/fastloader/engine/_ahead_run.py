"""One pass over the data in a thread of this process, ahead of the consumer."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import NamedTuple

from fastloader.engine._delivery import Deliveries, Delivery
from fastloader.engine._inprocess import BatchMaker
from fastloader.sampling._drawn import Drawn
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._rows import count_bytes
from fastloader.threads._fork_gate import ForkGate
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.threads._standby import Standby
from fastloader.threads._waiting import wait_for
from fastloader.typing import Batch

__all__ = ["AheadRun"]

DEPTH = 2
"""Batches ahead: one that is ready while the next one is made."""


class _Making(NamedTuple):
    drawn: Drawn
    batch: Future[Batch]


class AheadRun:
    """A stream of the batches of one pass, made by a thread before they are asked for.

    For work that leaves the interpreter free, such as gathering and changing arrays. An error comes
    at its batch, and the batches after it come too.

    **Threads:** the one that stands by makes batches; the order is drawn by the consumer. A fork waits
    until no batch is being made.
    **Processes:** a forked child has no such thread: it can take back what was begun, and no more.

    Args:
        maker: Makes the batches; in the thread alone.
        order: The batches to make, one after the other.
        deliveries: Takes what became of them.
        standby: Has the thread; given back by `close`.
        budget_bytes: Of memory for batches that nobody has got: one is ahead where two do not fit.
    """

    is_growing = is_on_demand = False
    """Whether there will be more makers soon, or batches are made by the call that asks for them."""

    def __init__(
        self,
        maker: BatchMaker,
        order: Iterator[Drawn],
        deliveries: Deliveries,
        standby: Standby,
        *,
        budget_bytes: int,
    ) -> None:
        self._maker = maker
        self.order = order
        """What is left of the order."""
        self._deliveries = deliveries
        self._standby = standby
        self._budget_bytes = budget_bytes
        self._depth = 1  # until the size of a batch is known
        self._gate = ForkGate()
        self._pid = os.getpid()
        self._ahead: deque[_Making] = deque()
        self._is_held = False
        self._is_closed = False

    def __next__(self) -> Batch:
        """Return the next batch, waiting for it.

        Raises:
            StopIteration: At the end of the pass.
        """
        held_interrupts.hold()
        self._fill()
        if not self._ahead:
            raise StopIteration
        wait_for(self._ahead[0].batch)
        drawn, made = self._ahead.popleft()
        has_batch = made.exception() is None
        self._deliveries.append(
            Delivery(drawn.number, drawn.indices, 0, has_batch, drawn.sampler_state, None)
        )
        try:
            if has_batch and self._depth < DEPTH:
                fits = DEPTH * count_bytes(made.result()) <= self._budget_bytes
                self._depth = DEPTH if fits else 1
            self._fill()
            return made.result()
        finally:
            del made  # whose error holds this frame: both would stay until the next collection

    @property
    def is_lost(self) -> bool:
        """Whether there is nobody who makes batches."""
        return os.getpid() != self._pid

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if that would mean to wait."""
        self._fill()
        return [next(self)] if self._ahead and self._ahead[0].batch.done() else []

    def hold(self) -> bool:
        """Begin no more batches for now.

        Returns:
            Whether none is under way.
        """
        self._is_held = True
        return not self._ahead

    def go_on(self) -> None:
        """Begin batches again after `hold`."""
        self._is_held = False

    def take_back(self) -> list[Drawn]:
        """Drop all batches that are under way; return what they were to be made of."""
        if not self.is_lost:
            for one in self._ahead:
                one.batch.cancel()
            wait([one.batch for one in self._ahead])
        dropped = [one.drawn for one in self._ahead]
        self._ahead.clear()
        return dropped

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        ahead = tuple(self._ahead)
        return QueueState(len(ahead), sum(one.batch.done() for one in ahead))

    def close(self) -> None:
        """Drop what is under way and give the thread back; harmless when repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        self.take_back()
        self._maker.close()
        if not self.is_lost:
            self._standby.give_back()

    def _fill(self) -> None:
        while len(self._ahead) < self._depth and not self._is_held:
            drawn = next(self.order, None)
            if drawn is None:
                return
            made = self._standby.executor.submit(self._make, drawn)
            self._ahead.append(_Making(drawn, made))

    def _make(self, drawn: Drawn) -> Batch:
        with self._gate:
            return self._maker.make(drawn.indices, drawn.number)
