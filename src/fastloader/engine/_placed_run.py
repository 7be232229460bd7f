"""A pass whose batches are made in one place or another, as a `Placement` decides from batch to batch."""

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Protocol

from fastloader.engine._placement import Place, Placement
from fastloader.sampling._drawn import Drawn
from fastloader.streams._queue_state import QueueState
from fastloader.typing import Batch

__all__ = ["PlacedRun", "Run"]


class Run(Protocol):
    """What makes batches in one place."""

    order: Iterator[Drawn]
    """What is left to be made, while nothing is under way."""

    @property
    def is_growing(self) -> bool:
        """Whether there will be more makers soon."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether there is nobody who makes batches: this process is a child that was forked since."""
        ...

    @property
    def is_on_demand(self) -> bool:
        """Whether batches are made by the call that asks for them."""
        ...

    def __next__(self) -> Batch:
        """Return the next batch; StopIteration at the end."""
        ...

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if that would mean to wait."""
        ...

    def hold(self) -> bool:
        """Begin no more batches for now; return whether none is under way."""
        ...

    def go_on(self) -> None:
        """Begin batches again after `hold`."""
        ...

    def take_back(self) -> list[Drawn]:
        """Drop all batches that are under way; return what they were to be made of."""
        ...

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        ...

    def close(self) -> None:
        """Cancel what is under way."""
        ...


class PlacedRun:
    """A stream of the batches of one pass over samples that may be read in several places.

    Args:
        placement: Of the loader.
        order: The batches to make, one after the other.
        count_left: Tells how many batches are left of the pass; None where they cannot be counted, or where workers
            are there anyway.
        makers: For each place what returns a run over what is left of the order.
        num_workers: How many may compute at once.
        may_start_workers: Whether they do no harm, if they start now.
        end_workers: Ends those that there are.
        read_state: Returns what the samples are made of, as far as the caller may change that at any
            time; batches that were made ahead of a change are made anew, in this process.
    """

    def __init__(
        self,
        placement: Placement,
        order: Iterator[Drawn],
        *,
        count_left: Callable[[], int | None],
        makers: Mapping[Place, Callable[[Iterator[Drawn]], Run]],
        num_workers: int,
        may_start_workers: Callable[[], bool],
        end_workers: Callable[[], None],
        read_state: Callable[[], object] | None = None,
    ) -> None:
        placement.begin_pass([*makers][1:], num_workers)
        self._placement = placement
        self._count_left = count_left
        self._makers = makers
        self._may_start_workers = may_start_workers
        self._end_workers = end_workers
        self._read_state = read_state
        self._state: object = None
        self._runs: dict[Place, Run] = {}
        self._place = Place.HERE
        self._run = self._here = self._runs[Place.HERE] = makers[Place.HERE](order)
        self._stays = False
        self._num_passed_over = 0  # before the batch that is noted next
        self._num_unlooked = 0  # of these
        self._last = time.perf_counter()

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the pass.
        """
        if self._num_unlooked:
            self._num_unlooked -= 1
            return next(self._here)
        run = self._choose()
        began = time.perf_counter()
        batch = next(run)
        self._note(began)
        return batch

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if that would mean to wait."""
        run = self._choose()
        began = time.perf_counter()
        ready = run.next_if_ready()
        if ready:
            self._note(began)
        return ready

    @property
    def is_on_demand(self) -> bool:
        """Whether batches are made by the call that asks for them."""
        return self._run.is_on_demand

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        return self._run.queue()

    def close(self) -> None:
        """Cancel what is under way."""
        for run in self._runs.values():
            run.close()

    def _note(self, began: float) -> None:
        """Note a batch that is there, and those before it that were passed over."""
        ended = time.perf_counter()
        num_batches, self._num_passed_over = 1 + self._num_passed_over, 0
        if self._place is not Place.HERE and self._read_state is not None:
            self._state = self._read_state()
        placement = self._placement
        if self._place is placement.place and not self._run.is_growing:
            placement.note(ended - self._last, ended - began, num_batches)
            self._num_passed_over = self._num_unlooked = placement.num_passed_over
        self._last = ended

    def _choose(self) -> Run:
        """Return what makes the next batch, which is what made the last one while that has any."""
        wanted = self._wanted()
        if wanted is self._place:
            self._run.go_on()
        elif self._run.hold():
            self._move_to(wanted)
        return self._run

    def _wanted(self) -> Place:
        if self._place is not Place.HERE and (self._run.is_lost or self._has_changed()):
            self._go_back()
        placement = self._placement
        if placement.place is Place.WORKERS and Place.WORKERS not in self._runs:
            if not self._stays and (num_left := self._count_left()) is not None:
                self._stays = placement.may_finish_here(num_left)
            if not self._stays and not self._may_start_workers():
                placement.leave_out(Place.WORKERS)
        return self._place if self._stays else placement.place

    def _has_changed(self) -> bool:
        return self._read_state is not None and self._read_state() != self._state

    def _go_back(self) -> None:
        """Make all batches here from now on, also those that were made of what has changed since."""
        order = chain(self._run.take_back(), self._run.order)
        self._placement.stay_here()
        self._stays = True
        self._move_to(Place.HERE, order)

    def _move_to(self, place: Place, order: Iterator[Drawn] | None = None) -> None:
        # A run may have taken batches from the order that it has not begun.
        order = self._run.order if order is None else order
        if place is not Place.WORKERS and self._placement.needs_no_workers:
            workers = self._runs.pop(Place.WORKERS, None)
            if workers is not None:
                workers.close()
                self._end_workers()
        self._place = place
        if place is not Place.HERE and self._read_state is not None:
            self._state = self._read_state()
        if place not in self._runs:
            self._runs[place] = self._makers[place](order)
        self._run = self._runs[place]
        self._run.order = order
        self._run.go_on()
