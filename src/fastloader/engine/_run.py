"""One pass over the data through a pool of workers: tasks out, batches back in order."""

import logging
import pickle
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator

from fastloader.engine._death import describe_death
from fastloader.engine._delivery import Delivery
from fastloader.engine._dispatch import Dispatch
from fastloader.engine._fetch import AllSkippedError, SkippedSample
from fastloader.engine._inprocess import BatchMaker
from fastloader.engine._messages import Reply, ReplyKind, Task
from fastloader.engine._patience import Patience
from fastloader.engine._pending import Pending
from fastloader.engine._pool import Death, Event, WorkerPool
from fastloader.engine._remote_errors import unpack_error
from fastloader.engine._run_options import RunOptions
from fastloader.engine._shares import warn_of_drops, warn_of_repeats
from fastloader.engine._stream_point import PackedPoint, unpack_point
from fastloader.engine._team import Team
from fastloader.engine._unpacking import unpack
from fastloader.engine._whereabouts import place_of, whereabouts
from fastloader.errors import WorkerDiedError
from fastloader.sampling._drawn import Drawn
from fastloader.shm._arena import Slot
from fastloader.streams._queue_state import QueueState
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.typing import Batch

__all__ = ["PoolRun"]

logger = logging.getLogger("fastloader")

COPIED_BYTES = 1 << 16
"""Batches up to this size are copied out of their slot: cheaper than lending it, and a list of
a million tiny batches does not hold a million slots."""

MOST_DEATHS = 3
"""So many workers in a row are started anew that end before their next batch is made."""

_ERRORS = {ReplyKind.ERROR, ReplyKind.UNPICKLABLE}


class PoolRun:
    """A stream of the batches of one pass; `close` cancels what is under way.

    As many are under way as `prefetch_factor` times the number of workers, or fewer if their slots
    would exceed the budget; see `Dispatch` for who gets them.

    **Processes:** consumer's side. One run at a time uses a pool.
    """

    def __init__(self, pool: WorkerPool, order: Iterator[Drawn], options: RunOptions) -> None:
        self._pool = pool
        self._options = options
        self._arrived: deque[int] = deque()  # numbers in the order of their replies
        self._num_workers = pool.options.num_workers
        self._is_closed = False
        self._num_dropped = 0
        self._deaths = [0] * self._num_workers  # without a batch in between
        # Where workers are in their shares of an iterable dataset.
        self._points: dict[int, PackedPoint] = dict(options.stream_points)
        self.counters = options.counters
        """What happened so far."""
        self.counters.make_room(pool.options.num_workers)
        self._tasks = tasks = Dispatch(pool, order, options)
        self._team = Team(pool, tasks.turns, tasks.lookahead, options.may_grow)
        self._handle([*tasks.early])
        self._handle(pool.wait(0))  # slots of a run that was broken off come back
        tasks.submit()

    def __next__(self) -> Batch:
        """Return the next batch, waiting for it.

        Raises:
            StopIteration: At the end of the pass.
            WorkerDiedError: If a worker process ended by itself.
            WorkerTimeoutError: If no batch came in time.
        """
        while True:
            if ready := self._open_next():
                return ready[0]
            if not self._tasks.pending:
                self._finish()
                raise StopIteration
            self._receive()

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if that would mean to wait.

        Raises:
            WorkerDiedError: If a worker process ended by itself.
        """
        if self._tasks.pending:
            self._handle(self._pool.wait(0))
        return self._open_next()

    is_lost = is_on_demand = False
    """Whether there is nobody who makes batches, of which a forked child is told by the pool, or they are made by
    the call that asks for them."""

    @property
    def order(self) -> Iterator[Drawn]:
        """What is left of the order: others may go on with that while nothing is under way."""
        return self._tasks.order

    @order.setter
    def order(self, order: Iterator[Drawn]) -> None:
        self._tasks.order = order

    @property
    def is_growing(self) -> bool:
        """Whether workers have been taken on that have not started."""
        return self._pool.num_ready < self._pool.num_live

    def hold(self) -> bool:
        """Send no more tasks for now, but at the end of the order, of which nothing is left to others.

        Returns:
            Whether nothing is under way.
        """
        self._tasks.is_held = not self._tasks.is_ended
        return self._tasks.is_held and not self._tasks.pending

    def go_on(self) -> None:
        """Send tasks again after `hold`."""
        if self._tasks.is_held:
            self._tasks.is_held = False
            self._team.go_on()
            self._tasks.submit()

    def take_back(self) -> list[Drawn]:
        """Cancel all that is under way, and the run; return what batches were to be made of."""
        pending = self._tasks.pending.values()
        drawn = [Drawn(one.task.number, one.task.indices, one.sampler_state) for one in pending]
        self.close()
        return drawn

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        arena = self._pool.arena
        pending = tuple(self._tasks.pending.values())
        num_ready = self._count_made(pending)
        return QueueState(
            num_asked=len(pending),
            num_ready=num_ready,
            num_pinned=num_ready if arena.is_locked else 0,
            num_slots=arena.num_slots,
            num_free_slots=arena.num_free,
            slots_in_use_bytes=(arena.num_slots - arena.num_free) * arena.slot_bytes,
        )

    def _count_made(self, pending: tuple[Pending, ...]) -> int:
        """Return how many of these batches are made: what a busy consumer has not read counts."""
        unanswered = Counter(one.worker for one in pending if one.reply is None)
        unread = (
            min(count, self._pool.count_unread(worker)) for worker, count in unanswered.items()
        )
        return len(pending) - unanswered.total() + sum(unread)

    def _open_next(self) -> list[Batch]:
        held_interrupts.hold()
        while (pending := self._next_arrived()) is not None:
            self._tasks.submit()
            reply = pending.reply
            if reply is not None and reply.kind is ReplyKind.BATCH:
                self._deliver(pending, has_batch=True)
                self._count(pending, reply)
                return [self._open(pending.slot, reply)]
            self._pool.arena.give_back(pending.slot)
            if (
                reply is not None
                and reply.kind is ReplyKind.UNPICKLABLE
                and self._options.maker
            ):
                made = self._make_here(pending.task, self._options.maker)
                self._deliver(pending, has_batch=bool(made))
                if made:
                    return made
                continue  # all its samples were skipped: the next one may have arrived
            self._deliver(pending, has_batch=False)
            if reply is not None and reply.kind in _ERRORS:
                raise unpack_error(reply.body, place_of(self._pool, pending))
        return []

    def _deliver(self, pending: Pending, *, has_batch: bool) -> None:
        point = pending.reply.point if pending.reply is not None else b""
        self._options.deliveries.append(
            Delivery(
                pending.task.number,
                pending.task.indices,
                pending.worker,
                has_batch,
                pending.sampler_state,
                point or None,
            )
        )

    def _make_here(self, task: Task, maker: BatchMaker) -> list[Batch]:
        self.counters.num_made_here += 1
        try:
            return [maker.make(task.indices, task.number)]
        except AllSkippedError:
            return []

    def close(self) -> None:
        """Cancel the tasks that are under way and take their slots back."""
        if self._is_closed:
            return
        self._is_closed = True
        self._tasks.cancel()

    def _next_arrived(self) -> Pending | None:
        if not self._options.in_order:
            return self._tasks.pending.pop(self._arrived.popleft()) if self._arrived else None
        first = next(iter(self._tasks.pending.values()), None)
        if first is None or first.reply is None:
            return None
        return self._tasks.pending.pop(first.task.number)

    def _count(self, pending: Pending, reply: Reply) -> None:
        counters = self.counters
        counters.num_batches += 1
        counters.num_bytes += reply.needed_bytes
        counters.made_batches[pending.worker] += 1
        self._team.note_batch(reply.busy_seconds, reply.cpu_seconds)
        self._tasks.lookahead.note_batch(
            reply.busy_seconds,
            reply.cpu_seconds,
            reply.needed_bytes,
            in_new_memory=pending.slot.is_new_to_user,
        )

    # Receiving

    def _receive(self) -> None:
        options = self._options
        patience = Patience(options.timeout_seconds, options.stall_seconds, self._whereabouts)
        while not (events := self._wait(patience.seconds_left)):
            patience.check()
        self._handle(events)

    def _wait(self, seconds: float) -> list[Event]:
        num_idle, num_if_shallower = self._tasks.num_idle(), self._tasks.num_idle_if_shallower()
        began = time.monotonic()
        events = self._pool.wait(min(seconds, self._team.longest_wait_seconds))
        waited = time.monotonic() - began
        self.counters.waited_seconds += waited
        self._tasks.lookahead.note_idle(num_idle * waited, num_if_shallower * waited)
        self._team.note_wait(waited, is_last=not self._tasks.has_more)
        return events

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Death):
                self._bury(event.worker)
            else:
                self._take(event.worker, event.reply)

    def _take(self, worker: int, reply: Reply) -> None:
        if reply.kind is ReplyKind.NOT_STARTED:
            raise unpack_error(reply.body, f"DataLoader worker {worker}, which did not start")
        if reply.kind is ReplyKind.READY:
            self._team.welcome()
            self._tasks.submit()
            return
        if reply.run != self._tasks.scope.run:
            self._pool.put_aside(worker, reply)
            return
        self.counters.add_work(worker, reply.busy_seconds, reply.cpu_seconds)
        if not reply.kind.is_final:
            self._note(reply, worker)
            return
        pending = self._tasks.pending.get(reply.number)
        if pending is None or pending.reply is not None or pending.worker != worker:
            return  # made twice, by a worker that died after it had sent it
        if reply.kind is ReplyKind.TOO_LARGE:
            self._tasks.offer_larger_slot(pending, reply)
            return
        self._tasks.turns.finish(worker)
        self._deaths[worker] = 0
        if reply.point:
            self._points[worker] = reply.point
        if reply.kind is ReplyKind.END:
            self._end_worker(worker, reply)
        pending.reply = reply
        if not self._options.in_order:
            self._arrived.append(reply.number)

    def _end_worker(self, worker: int, reply: Reply) -> None:
        self._tasks.turns.end(worker)
        self._num_dropped += pickle.loads(reply.body)

    def _open(self, slot: Slot, reply: Reply) -> Batch:
        arena = self._pool.arena
        if arena.num_free > 2 * self._tasks.num_kept():
            arena.trim(self._tasks.num_kept())
        if reply.needed_bytes > COPIED_BYTES:
            return unpack(reply.body, arena.lease(slot))
        copied = slot.copy(reply.needed_bytes) if reply.needed_bytes else None
        arena.give_back(slot)
        return unpack(reply.body, copied)

    # Trouble

    def _whereabouts(self) -> str:
        return whereabouts(self._pool, self._tasks.pending.values())

    def _bury(self, worker: int) -> None:
        self._pool.cancel_head_start()
        if self._tasks.turns.is_done(worker):
            return
        lost = self._tasks.lost_with(worker)
        process = self._pool.processes[worker]
        process.join(1)
        has_started = self._pool.has_started(worker)
        batches = [p.task.indices for p in lost] if has_started else None
        text = describe_death(process.pid, process.exitcode, batches)
        if not self._options.restarts_workers:
            raise WorkerDiedError(text)
        if not has_started and (process.exitcode or 0) > 0:
            raise WorkerDiedError(f"{text} Another one would not start either.")
        self._deaths[worker] += 1
        if self._deaths[worker] > MOST_DEATHS:
            raise WorkerDiedError(
                f"{text} {MOST_DEATHS} workers before it ended there as well, so another one "
                "would not help."
            )
        logger.warning("%s It is started anew.", text)
        self._pool.restart(worker)
        packed = self._points.get(worker)
        self._tasks.repeat(worker, lost, None if packed is None else unpack_point(packed))

    def _note(self, reply: Reply, worker: int) -> None:
        if reply.kind is ReplyKind.SKIPPED:
            self._note_skipped(reply, worker)
        elif reply.kind is ReplyKind.WARNING:
            warnings.warn(reply.body.decode(), stacklevel=2)
        else:
            self._warn_of_repeats()

    def _note_skipped(self, reply: Reply, worker: int) -> None:
        for index, error in pickle.loads(reply.body):
            self._options.skipped.append(SkippedSample(index, error))
            logger.warning(
                "Skipped the sample at index %s (batch %d, worker %d): %s",
                index,
                reply.number,
                worker,
                error,
            )

    def _warn_of_repeats(self) -> None:
        if self._pool.options.worker_init_fn is None:
            warn_of_repeats(self._num_workers)

    def _finish(self) -> None:
        self._is_closed = True
        self._pool.arena.trim(self._tasks.num_kept())
        if self._options.is_iterable and self._options.drop_last:
            warn_of_drops(self._num_dropped, self._num_workers)
