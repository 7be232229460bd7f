"""One pass over the data through worker threads: jobs out, batches back in order."""

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from fastloader._notes import add_note
from fastloader.engine._counters import RunCounters
from fastloader.engine._delivery import Deliveries, Delivery
from fastloader.engine._fetch import SkippedSample
from fastloader.engine._patience import Patience
from fastloader.engine._shares import warn_of_drops, warn_of_repeats
from fastloader.engine._thread_workers import Job, ThreadSetup, ThreadWorkers
from fastloader.engine._turns import Turns
from fastloader.engine._wording import name_samples
from fastloader.sampling._drawn import Drawn
from fastloader.streams._queue_state import QueueState
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.typing import Batch

__all__ = ["ThreadOptions", "ThreadRun"]

logger = logging.getLogger("fastloader")


@dataclass(frozen=True)
class ThreadOptions:
    """Options of a `ThreadRun`."""

    in_order: bool
    prefetch_factor: int
    timeout_seconds: float
    """0 waits for ever."""
    stall_seconds: float
    """After this time without a batch a warning says where the workers are."""
    skipped: list[SkippedSample]
    """Takes the samples that were left out."""
    next_worker: int
    """Whose turn it is at first, with an iterable dataset."""
    deliveries: Deliveries
    """Takes what became of the batches."""


class ThreadRun:
    """A stream of the batches of one pass; `close` cancels what is under way.

    Samples are read by whichever thread is free, so the samples of one batch are read at the
    same time; the batch is collated into memory that is used again, and nothing travels.

    Args:
        setup: What to read and how.
        order: The batches to make, one after the other.
        options: How batches are handed out.
    """

    is_on_demand = False
    """Whether batches are made by the call that asks for them."""

    def __init__(
        self, setup: ThreadSetup, order: Iterator[Drawn], options: ThreadOptions
    ) -> None:
        self._setup = setup
        self._order = order
        self._options = options
        self._pending: dict[int, Job] = {}  # in the order in which they were given out
        self._done: set[int] = set()
        self._arrived: deque[int] = deque()
        # Not a condition: what interrupts the wait for one breaks it, as it is several calls.
        self._news = threading.Lock()
        self._news.acquire()
        self._turns = Turns(
            setup.num_workers,
            in_turn=options.in_order,
            is_iterable=setup.plan.is_iterable,
            most_each=options.prefetch_factor,
            first=options.next_worker,
        )
        for worker, point in setup.stream_points.items():
            self._turns.go_on_after(worker, point.number)
        self._order_is_ended = False
        self._is_closed = False
        self._num_dropped = 0
        self._was_told_of_repeats = False
        self.counters = RunCounters()
        self.counters.make_room(setup.num_workers)
        """What happened so far."""
        self._workers = ThreadWorkers(setup, self._note_done, self.counters)
        self._submit()

    def __next__(self) -> Batch:
        """Return the next batch, waiting for it.

        Raises:
            StopIteration: At the end of the pass.
            WorkerTimeoutError: If no batch came in time.
        """
        while True:
            if ready := self._open_next():
                return ready[0]
            if not self._pending:
                self._finish()
                raise StopIteration
            self._wait()

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if that would mean to wait."""
        return self._open_next()

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        return QueueState(len(self._pending), len(self._done) + len(self._arrived))

    def close(self) -> None:
        """Cancel what is under way and end the threads."""
        if self._is_closed:
            return
        self._is_closed = True
        self._workers.close()
        self._pending.clear()

    def _note_done(self, job: Job | None) -> None:
        if job is not None:
            self._arrived.append(job.number)
        with suppress(RuntimeError):  # there were news already
            self._news.release()

    def _open_next(self) -> list[Batch]:
        held_interrupts.hold()
        while (job := self._next_done()) is not None:
            if job.worker is not None:
                self._turns.finish(job.worker)
                if job.is_end:
                    self._turns.end(job.worker)
                    self._num_dropped += job.num_dropped
            self._options.deliveries.append(
                Delivery(
                    job.number,
                    job.indices,
                    job.worker or 0,
                    bool(job.batch),
                    job.sampler_state,
                    job.point,
                )
            )
            self._submit()
            self._note_skipped(job)
            if job.failures:
                error, worker = job.failures[min(job.failures)]
                job.failures.clear()
                add_note(error, f"Raised in {self._place_of(job, worker)}.")
                try:
                    raise error
                finally:
                    del (
                        error
                    )  # which holds this frame: both would stay, and the threads with them
            if job.batch:
                return job.batch
        return []

    def _next_done(self) -> Job | None:
        if self._workers.unstarted:
            failure = self._workers.unstarted[0]
            add_note(
                failure.error,
                f"Raised in DataLoader worker thread {failure.worker}, which did not start.",
            )
            raise failure.error
        if self._workers.is_repeated and not self._was_told_of_repeats:
            self._was_told_of_repeats = True
            if self._setup.worker_init_fn is None:
                warn_of_repeats(self._setup.num_workers)
        if not self._options.in_order:
            return self._pending.pop(self._arrived.popleft()) if self._arrived else None
        while self._arrived:
            self._done.add(self._arrived.popleft())
        first = next(iter(self._pending), None)
        if first not in self._done:
            return None
        self._done.discard(first)
        return self._pending.pop(first)

    def _submit(self) -> None:
        most = self._options.prefetch_factor * self._setup.num_workers
        while len(self._pending) < most and not self._order_is_ended:
            # Anybody makes parts of a batch, but an iterable dataset has a share for each.
            worker = self._turns.choose() if self._setup.plan.is_iterable else None
            if worker is None and self._setup.plan.is_iterable:
                return
            try:
                drawn = next(self._order)
            except StopIteration:
                self._order_is_ended = True
                return
            number = drawn.number
            if worker is not None:
                self._turns.begin(worker)
                number = self._turns.number(worker)
            job = Job(number, drawn.indices, worker, drawn.sampler_state)
            self._pending[job.number] = job
            self._workers.do(job)

    def _wait(self) -> None:
        options = self._options
        patience = Patience(options.timeout_seconds, options.stall_seconds, self._whereabouts)
        held_interrupts.let_through()
        while not self._arrived and not self._workers.unstarted:
            if not self._news.acquire(timeout=patience.seconds_left):
                patience.check()

    def _note_skipped(self, job: Job) -> None:
        for skip in chain.from_iterable(job.skipped):
            self._options.skipped.append(skip)
            logger.warning(
                "Skipped the sample at index %s (batch %d): %s",
                skip.index,
                job.number,
                skip.error,
            )

    def _finish(self) -> None:
        plan = self._setup.plan
        if plan.is_iterable and plan.drop_last:
            warn_of_drops(self._num_dropped, self._setup.num_workers)

    def _place_of(self, job: Job, worker: int) -> str:
        setup = self._setup
        return (
            f"DataLoader worker thread {worker}, rank {setup.rank}, batch {job.number} of epoch "
            f"{setup.scope.epoch}, {name_samples(job.indices)}"
        )

    def _whereabouts(self) -> str:
        return "\n".join(
            f"Worker thread {worker} is at batch {job.number}, {name_samples(job.indices)}. It "
            f"is here:\n{stack}"
            for worker, (job, stack) in self._workers.stacks().items()
        )
