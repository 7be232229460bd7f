"""A pass whose batches are made here or by workers, as a `Placement` decides from batch to batch."""

import time
from collections.abc import Callable, Iterator

from fastloader.engine._inprocess import InProcessRun
from fastloader.engine._placement import Placement
from fastloader.engine._run import PoolRun
from fastloader.sampling._drawn import Drawn
from fastloader.streams._queue_state import QueueState
from fastloader.typing import Batch

__all__ = ["PlacedRun"]


class PlacedRun:
    """A stream of the batches of one pass over samples that may be read in any process.

    Args:
        placement: Of the loader.
        order: The batches to make, one after the other.
        num_batches: Of the pass, if that is known.
        make_here: Returns a run in this process over what is left of the order.
        start_workers: Returns a run of workers over what is left of the order.
        end_workers: Ends those that there are.
    """

    def __init__(
        self,
        placement: Placement,
        order: Iterator[Drawn],
        *,
        num_batches: int | None,
        make_here: Callable[[Iterator[Drawn]], InProcessRun],
        start_workers: Callable[[Iterator[Drawn]], PoolRun],
        end_workers: Callable[[], None],
    ) -> None:
        placement.begin_pass()
        self._placement = placement
        self._order = order
        self._num_left = num_batches
        self._make_here = make_here
        self._start_workers = start_workers
        self._end_workers = end_workers
        self._here = make_here(order)
        self._workers: PoolRun | None = None
        self._finishes_here = False
        self._last = time.perf_counter()

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the pass.
        """
        is_here = self._is_here()
        began = time.perf_counter()
        batch = next(self._here if is_here else self._run_of_workers())
        ended = time.perf_counter()
        if self._num_left is not None:
            self._num_left -= 1
        is_steady = is_here or not self._run_of_workers().is_growing
        if is_steady and is_here is self._placement.is_here:  # not one that was under way
            self._placement.note(ended - self._last, ended - began)
        self._last = ended
        return batch

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if that would mean to wait."""
        return (self._here if self._is_here() else self._run_of_workers()).next_if_ready()

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        return (self._workers or self._here).queue()

    def close(self) -> None:
        """Cancel what is under way."""
        self._here.close()
        if self._workers is not None:
            self._workers.close()

    def _is_here(self) -> bool:
        """Return whether the next batch is made here."""
        if self._workers is None:
            return self._placement.is_here or self._may_finish_here()
        if not self._placement.is_here:
            self._workers.go_on()
            return False
        if not self._workers.hold():
            return False
        if self._placement.is_settled_here:
            self._workers.close()
            self._workers = None
            self._end_workers()
        return True

    def _may_finish_here(self) -> bool:
        if self._num_left is not None and not self._finishes_here:
            self._finishes_here = self._placement.may_finish_here(self._num_left)
        return self._finishes_here

    def _run_of_workers(self) -> PoolRun:
        if self._workers is None:
            self._workers = self._start_workers(self._order)
            # It may have taken batches from the order that it has not begun.
            self._order = self._workers.order
            self._here = self._make_here(self._order)
        return self._workers
