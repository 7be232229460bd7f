"""The tasks of one pass: handed out to workers, taken back, and begun early for the next pass."""

from collections.abc import Iterator
from itertools import islice

from fastloader.engine._head_start import HeadStart
from fastloader.engine._lookahead import Lookahead
from fastloader.engine._messages import LiveState, Reply, Resume, SlotOffer, Task
from fastloader.engine._pending import Pending, Scope, assign_task
from fastloader.engine._pool import WorkerPool, WorkerReply
from fastloader.engine._run_options import RunOptions
from fastloader.engine._stream_point import StreamPoint
from fastloader.engine._turns import Turns
from fastloader.sampling._drawn import Drawn

__all__ = ["Dispatch"]


class Dispatch:
    """Sends the tasks of a pass, as many at once as may be under way.

    They go to the workers in turn; without order, where the number of workers is left to us, or where
    workers are alike, to the one with the least to do. When there are none left it goes on with the first ones of the
    next pass, if that can be told.

    Args:
        pool: The workers.
        order: The batches to make, one after the other.
        options: Of the pass.

    **Processes:** consumer's side.
    """

    def __init__(self, pool: WorkerPool, order: Iterator[Drawn], options: RunOptions) -> None:
        self._pool = pool
        self.order = order
        """What is left of it: others may go on with that while nothing is under way."""
        self.is_held = False
        """Whether no more tasks are to be sent for now."""
        self._options = options
        self._is_cancelled = False
        self.is_ended = False
        """Whether the order has no more batches."""
        self.pending: dict[int, Pending] = {}
        """Tasks whose batches the consumer has not got, in the order in which they were sent."""
        self.early: list[WorkerReply] = []
        """Replies that came before the pass began; to be taken once it has."""
        self._unsent: dict[int, list[Task]] = {}  # by worker
        self.lookahead = Lookahead(
            options.prefetch_factor,
            options.budget_bytes,
            pool.depth if options.may_deepen else None,
        )
        head_start = self._take_head_start()
        self.turns = self._make_turns() if head_start is None else head_start.turns
        self.scope = Scope(
            pool.begin_run(None if head_start is None else head_start.scope.run),
            options.epoch,
            options.base_seed,
        )
        self._resume_streams()
        if head_start is not None:
            self.pending = head_start.pending
            self.early = head_start.replies

    @property
    def has_more(self) -> bool:
        """Whether there are tasks to be sent."""
        return not (self.is_ended or self.is_held)

    def submit(self) -> None:
        """Send tasks until there are enough under way, if it is time to."""
        if self.is_held:
            return
        limit = self._limit()
        try:
            if self.lookahead.is_due(len(self.pending), limit):
                self._assign(limit)
        finally:
            self._send_assigned()  # also those before the sampler raised an error
        if self._pool.head_start is not None:
            self._pool.head_start.submit(limit - len(self.pending))

    def offer_larger_slot(self, pending: Pending, reply: Reply) -> None:
        """Lend a slot in which a batch that is made has room.

        Args:
            pending: The task of the batch.
            reply: Says how much room that is.
        """
        arena = self._pool.arena
        arena.require(reply.needed_bytes)
        arena.give_back(pending.slot)  # nothing of the batch lies there any more
        pending.slot = arena.lend(pending.worker)
        self._pool.send(
            pending.worker, SlotOffer(self.scope.run, reply.number, pending.slot.place)
        )

    def lost_with(self, worker: int) -> list[Pending]:
        """Return the tasks that a worker has not answered."""
        return [
            pending
            for pending in self.pending.values()
            if pending.worker == worker and pending.reply is None
        ]

    def repeat(self, worker: int, lost: list[Pending], point: StreamPoint | None) -> None:
        """Send tasks once more, to a new process in the place of the worker that had them.

        Args:
            worker: Its number.
            lost: The tasks.
            point: Where the worker was in its share of an iterable dataset, if it was anywhere.
        """
        if point is not None:
            self._pool.send(worker, Resume(self.scope.run, point))
        for pending in lost:
            pending.task = pending.task._replace(slot=pending.slot.place)
            self._pool.send(worker, pending.task)

    def num_kept(self) -> int:
        """Return how many slots the next batches, or the next pass, will need again."""
        return self._limit() + self._options.num_held + self._pool.num_live

    def num_idle(self) -> int:
        """Return how many workers have nothing to do, though there are more batches to make."""
        return self.turns.num_idle() if self.has_more else 0

    def num_idle_if_shallower(self) -> int:
        """Return how many workers would have nothing to do, were half as many batches ahead."""
        if not (self.has_more and self.lookahead.is_deepened):
            return 0
        first = islice(self.pending.values(), self._limit() // 2)
        num_at_work = len({one.worker for one in first if one.reply is None})
        return max(0, self.turns.num_open - num_at_work)

    def cancel(self) -> None:
        """Cancel the tasks that are under way and take their slots back."""
        self._is_cancelled = True
        self._pool.cancel_head_start()
        self._pool.cancel_run()
        # A worker may still write to the slot of the task it is at: slots come back with the
        # replies, which the next run of the pool collects.
        for number, pending in self.pending.items():
            if pending.reply is None:
                self._pool.abandon(self.scope.run, number, pending.slot)
            else:
                self._pool.arena.give_back(pending.slot)
        self.pending.clear()

    def _assign(self, limit: int) -> None:
        while len(self.pending) < limit and not self.is_ended:
            worker = self.turns.choose()
            if worker is None:
                return
            try:
                drawn = next(self.order)
            except StopIteration:
                self.is_ended = True
                self._begin_head_start()
                return
            self._send_live_state()
            number = self.turns.number(worker) if self._options.is_iterable else drawn.number
            pending = assign_task(self._pool, self.turns, worker, self.scope, drawn, number)
            self.pending[number] = pending
            self._unsent.setdefault(worker, []).append(pending.task)

    def _send_assigned(self) -> None:
        for worker, tasks in self._unsent.items():
            self._pool.send(worker, *tasks)
        self._unsent.clear()

    def _make_turns(self) -> Turns:
        pool = self._pool
        # One that has less of a core than the others would hold up all of them.
        goes_round = pool.staffing is None and not pool.options.are_alike
        return Turns(
            pool.options.num_workers,
            in_turn=self._options.in_order and goes_round,
            is_iterable=self._options.is_iterable,
            most_each=self._options.prefetch_factor,
            first=self._options.next_worker,
        )

    def _take_head_start(self) -> HeadStart | None:
        """Go on with what was sent before, if it is what this run begins with."""
        head_start, self._pool.head_start = self._pool.head_start, None
        if head_start is None:
            return None
        if self._live_state() != self._pool.live_state:
            head_start.cancel()
            return None
        options = self._options
        is_right, self.order = head_start.match(self.order, options.epoch, options.base_seed)
        self._pool.is_predictable = is_right
        return head_start if is_right else None

    def _begin_head_start(self) -> None:
        forecast = self._options.forecast() if self._pool.is_predictable else None
        if forecast is not None and not self._is_cancelled:
            turns = self._make_turns()
            turns.num_open = self.turns.num_open
            self._pool.head_start = HeadStart(self._pool, turns, forecast)

    def _limit(self) -> int:
        return self.lookahead.limit(self.turns.num_open, self._pool.arena.slot_bytes)

    def _resume_streams(self) -> None:
        for worker, point in self._options.stream_points.items():
            self.turns.go_on_after(worker, point.number)
            self._pool.send(worker, Resume(self.scope.run, point))

    def _send_live_state(self) -> None:
        state = self._live_state()
        if state != self._pool.live_state:
            self._send_assigned()  # these are still of the state before
            self._pool.live_state = state
            for worker in range(self._pool.num_live):
                self._pool.send(worker, state)

    def _live_state(self) -> LiveState:
        return LiveState(self._options.live_state(), self._options.dataset_epoch)
