"""One pass over the data in the calling process, into buffers that are used again."""

import logging
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar

from torch.utils.data import default_collate

from fastloader._notes import add_note
from fastloader.engine._collate import DefaultCollate, collate_map_into
from fastloader.engine._delivery import Deliveries, Delivery
from fastloader.engine._fetch import (
    AllSkippedError,
    Fetcher,
    FetchPlan,
    SkippedSample,
    make_fetcher,
)
from fastloader.engine._merged import MERGED_BYTES
from fastloader.engine._stream_point import PackedPoint, StreamPoint
from fastloader.engine._wording import name_samples
from fastloader.inspection._plain_code import has_plain_collate
from fastloader.machine._freed_memory import keep_some_freed_memory
from fastloader.machine._ranks import read_ranks
from fastloader.randomness._isolation import BatchIsolation, DrawingHabits
from fastloader.randomness._seeding import DrawScope, draw_scope
from fastloader.sampling._drawn import Drawn
from fastloader.streams._on_demand import OnDemand
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._buffers import Allocator, allocating_with
from fastloader.threads._crew import Crew, working_with
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.typing import Batch

__all__ = ["BatchMaker", "InProcessRun"]

T = TypeVar("T")

logger = logging.getLogger("fastloader")

_INERT = frozenset({list, tuple, range})
"""Datasets that run no code; those that make whole batches draw by index, from no state."""


class BatchMaker:
    """Makes single batches in the calling process, as a worker would make them.

    Random draws are those of a worker, see `BatchIsolation`.

    Args:
        plan: What to read and how.
        allocate: Makes the tensors of the batches.
        read_scope: Returns base seed and epoch; called when they are needed, as plain code never draws.
        skipped: Takes the samples that were left out.
        habits: What earlier epochs have shown of the dataset's draws.
        crew: Lent to datasets that make whole batches.
        on_close: Called when no more batches will be made.
        point: Where an iterable dataset goes on.
        remind: Tells the dataset which epoch it is, before each batch, if it wants to know.
        is_inert: Whether all code that runs for a batch is known to draw nothing, and to ask nobody for
            memory.
    """

    most_bytes = first_bytes = MERGED_BYTES
    """That one call should make, where batches are made several at once, from the second on."""

    def __init__(
        self,
        plan: FetchPlan,
        allocate: Allocator,
        *,
        read_scope: Callable[[], DrawScope],
        skipped: list[SkippedSample],
        habits: DrawingHabits | None = None,
        crew: Crew | None = None,
        on_close: Callable[[], None] | None = None,
        point: StreamPoint | None = None,
        remind: Callable[[], None] | None = None,
        is_inert: bool = False,
    ) -> None:
        self._plan = plan
        self._allocate = allocate
        self._read_scope = read_scope
        self._habits = habits
        self._skipped = skipped
        self._crew = crew
        self._on_close = on_close
        self._point = point
        self._remind = remind
        self.is_inert = is_inert or (
            type(plan.dataset) in _INERT and plan.calls_only_dataset and has_plain_collate()
        )
        """Whether no code of the user's runs but plain one."""
        self._fetcher: Fetcher | None = None
        keep_some_freed_memory()

    def make(self, indices: Any, number: int) -> Batch:
        """Return one batch.

        Args:
            indices: Of the samples.
            number: Of the batch in its epoch, from 0.

        Raises:
            StopIteration: If an iterable dataset has no more samples.
            AllSkippedError: If all samples of the batch were left out.
        """
        if self._remind is not None:
            self._remind()
        if self.is_inert:
            return self._fetch(indices, number)
        num_samples = len(indices) if self._plan.auto_collation else 1
        if self._fetcher is None and self._point is not None and self._point.is_read_again:
            self._fetcher = self._read_again(self._point, indices, num_samples)
        return self._surrounded(number, num_samples, partial(self._fetch, indices, number))

    def stream_point(self, number: int) -> PackedPoint | None:
        """Return where an iterable dataset is after a batch; None for any other."""
        if self._fetcher is None or not self._plan.is_iterable:
            return None
        return self._fetcher.stream_point(number)

    def close(self) -> None:
        """Make no more batches; harmless when repeated."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _fetch(self, indices: Any, number: int) -> Batch:
        if self._fetcher is None:
            self._fetcher = make_fetcher(self._plan, self._collate(), self._point)
        fetcher = self._fetcher
        try:
            with working_with(self._crew):
                return fetcher.fetch(indices)
        except (StopIteration, AllSkippedError):
            raise
        except Exception as error:
            add_note(error, f"Raised in batch {number}, {name_samples(indices)}.")
            raise
        finally:
            if fetcher.skipped:
                self._note_skipped(fetcher)

    def _read_again(self, point: StreamPoint, indices: Any, num_samples: int) -> Fetcher:
        def start() -> Fetcher:
            fetcher = make_fetcher(self._plan, self._collate(), point)
            fetcher.pass_over(indices)
            return fetcher

        fetcher = self._surrounded(0, num_samples, start)
        for number in range(1, point.number + 1):
            self._surrounded(number, num_samples, partial(fetcher.pass_over, indices))
        return fetcher

    def _collate(self) -> Callable[[Any], Any]:
        if self._plan.collate_fn is not default_collate:
            return self._plan.collate_fn
        return DefaultCollate(collate_map_into(self._allocate))

    def _surrounded(self, number: int, num_samples: int, work: Callable[[], T]) -> T:
        with draw_scope(self._scope), allocating_with(self._allocate):
            if self._plan.batched is not None:
                return work()
            isolation = self._isolation
            if isolation.leaves_alone(number):
                return work()
            return isolation.isolated(work, number, num_samples)

    @cached_property
    def _scope(self) -> DrawScope:
        return self._read_scope()

    @cached_property
    def _isolation(self) -> BatchIsolation:
        """Made when it is needed: plain code, and what makes whole batches, draws nothing."""
        seed, epoch = self._scope.seed, self._scope.epoch
        return BatchIsolation(seed, epoch, read_ranks().rank, habits=self._habits)

    def _note_skipped(self, fetcher: Fetcher) -> None:
        for skip in fetcher.skipped:
            self._skipped.append(skip)
            logger.warning("Skipped the sample at index %s: %s", skip.index, skip.error)
        fetcher.skipped.clear()


class InProcessRun(OnDemand):
    """A stream of the batches of one pass, each made when it is asked for.

    Args:
        maker: Makes the batches.
        order: The batches to make, one after the other.
        deliveries: Takes what became of them.
    """

    is_growing = is_lost = False
    """Whether there will be more makers soon, or there are none."""

    def __init__(
        self, maker: BatchMaker, order: Iterator[Drawn], deliveries: Deliveries
    ) -> None:
        self._maker = maker
        self._order = order
        self._deliveries = deliveries
        self._begun: Drawn | None = None  # and not made, where Ctrl-C came in between

    @property
    def order(self) -> Iterator[Drawn]:
        """What is left of the order."""
        return self._order if self._begun is None else chain((self._begun,), self._order)

    @order.setter
    def order(self, order: Iterator[Drawn]) -> None:
        self._order, self._begun = order, None

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the pass.
            KeyboardInterrupt: At Ctrl-C; the next call makes that batch anew.
        """
        # Other code of the user's may take its time; to set a handler twice more takes longer than all else here.
        may_take_long = not self._maker.is_inert
        while True:
            held_interrupts.hold()
            if self._begun is None:
                self._begun = next(self._order)
            drawn = self._begun
            try:
                if may_take_long:
                    held_interrupts.let_through()
                batch = self._maker.make(drawn.indices, drawn.number)
                if may_take_long:
                    held_interrupts.hold()
            except KeyboardInterrupt:
                raise  # begun it stays, for who goes on
            except AllSkippedError:
                self._note(drawn, has_batch=False)
            except BaseException:
                self._note(drawn, has_batch=False)
                raise
            else:
                self._note(drawn, has_batch=True)
                return batch

    def _note(self, drawn: Drawn, *, has_batch: bool) -> None:
        self._begun = None
        number, indices, sampler_state = drawn
        point = self._maker.stream_point(number)
        delivery = number, indices, 0, has_batch, sampler_state, point
        # Its own constructor takes three times as long.
        self._deliveries.append(tuple.__new__(Delivery, delivery))

    def hold(self) -> bool:
        """Return that nothing is under way: batches are begun when they are asked for."""
        return True

    def go_on(self) -> None:
        """Do nothing: nothing was held."""

    def take_back(self) -> list[Drawn]:
        """Return nothing: nothing was begun."""
        return []

    def queue(self) -> QueueState:
        """Return nothing under way."""
        return QueueState()

    def close(self) -> None:
        """End the threads that help making batches; no work is under way."""
        self._maker.close()
