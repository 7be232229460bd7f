"""Tasks of the next run, sent while workers make the last batches of this one."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from fastloader.engine._messages import Reply
from fastloader.engine._pending import Pending, Scope, assign_task
from fastloader.engine._pool import WorkerPool, WorkerReply
from fastloader.engine._turns import Turns
from fastloader.sampling._drawn import Drawn

__all__ = ["Forecast", "HeadStart"]


class Forecast(NamedTuple):
    """What the next run over the data will be, if nobody changes anything before."""

    epoch: int
    base_seed: int
    order: Iterator[Drawn]


class HeadStart:
    """The first tasks of a run that has not begun.

    They are what was forecast. When the run begins they are compared with what it is to be, task
    by task: either all of them are as they should be, or they are cancelled.

    Args:
        pool: The workers.
        turns: As they will be at the start of the run.
        forecast: What the run will be.
    """

    def __init__(self, pool: WorkerPool, turns: Turns, forecast: Forecast) -> None:
        self._pool = pool
        self._order = forecast.order
        self.turns = turns
        self.scope = Scope(pool.reserve_run(), forecast.epoch, forecast.base_seed)
        self.pending: dict[int, Pending] = {}
        """What was sent, by number, in this order."""
        self.replies: list[WorkerReply] = []
        """What came of it so far, not looked at."""

    def submit(self, most: int) -> None:
        """Send tasks until there are `most`."""
        while len(self.pending) < most:
            worker = self.turns.choose()
            drawn = next(self._order, None)
            if worker is None or drawn is None:
                return
            pending = assign_task(
                self._pool, self.turns, worker, self.scope, drawn, drawn.number
            )
            self.pending[drawn.number] = pending
            self._pool.send(worker, pending.task)

    def keep(self, worker: int, reply: Reply) -> None:
        """Keep a reply until the run begins."""
        self.replies.append(WorkerReply(worker, reply))

    def match(
        self, order: Iterator[Drawn], epoch: int, base_seed: int
    ) -> tuple[bool, Iterator[Drawn]]:
        """Compare with the run that begins; cancel the tasks if any is not as it should be.

        Returns:
            Whether the tasks are right, and what is left of the order to be sent.
        """
        begun = list(islice(order, len(self.pending)))
        is_right = (
            (self.scope.epoch, self.scope.base_seed) == (epoch, base_seed)
            and [drawn.number for drawn in begun] == list(self.pending)
            and all(
                _are_same(pending.task.indices, drawn.indices)
                for pending, drawn in zip(self.pending.values(), begun, strict=True)
            )
        )
        if not is_right:
            self.cancel()
            return False, chain(begun, order)
        for pending, drawn in zip(self.pending.values(), begun, strict=True):
            pending.sampler_state = drawn.sampler_state
        return True, order

    def cancel(self) -> None:
        """Take the slots back, now or when the workers are done with them."""
        done = {reply.number for _, reply in self.replies if reply.kind.is_final}
        for number, pending in self.pending.items():
            if number in done:
                self._pool.arena.give_back(pending.slot)
            else:
                self._pool.abandon(self.scope.run, number, pending.slot)
        self.pending.clear()


def _are_same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, list):
        return isinstance(ours, list) and list(ours) == list(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)
