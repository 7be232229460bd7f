"""Keeps a pool as large as the consumer of a run needs it, and the turns in step with it."""

import time
from collections.abc import Callable

from fastloader.engine._lookahead import Lookahead
from fastloader.engine._pool import WorkerPool
from fastloader.engine._turns import Turns

__all__ = ["Team"]

WAIT_SECONDS = 0.1  # how often a waiting consumer asks whether it needs more workers
BATCHES_BETWEEN_LOOKS = 32


class Team:
    """The workers of a pool that get the tasks of one run.

    A worker that is taken on gets none before it has started, or the batches behind its first
    one would wait for that, too.

    Args:
        pool: The workers.
        turns: Of the run.
        lookahead: Of the run.
        may_grow: Whether a worker that starts now would be like the others.
    """

    def __init__(
        self, pool: WorkerPool, turns: Turns, lookahead: Lookahead, may_grow: Callable[[], bool]
    ) -> None:
        self._pool = pool
        self._turns = turns
        self._lookahead = lookahead
        self._may_grow = may_grow
        self._staffing = pool.staffing
        self._num_batches = 0
        self._num_wanted = pool.num_live
        if self._staffing is not None:
            self._staffing.begin_run(time.monotonic())
            self._open_turns()

    def go_on(self) -> None:
        """Leave out the time in which the workers had no tasks."""
        if self._staffing is not None:
            self._staffing.begin_run(time.monotonic())

    @property
    def longest_wait_seconds(self) -> float:
        """How long to wait at once."""
        return float("inf") if self._staffing is None else WAIT_SECONDS

    def note_wait(self, seconds: float, *, is_last: bool) -> None:
        """Note that the consumer has waited for a batch.

        Args:
            seconds: How long.
            is_last: Whether there are no more tasks for anybody.
        """
        if self._staffing is not None:
            self._staffing.note_wait(seconds)
            self._look(may_grow=not is_last)

    def note_batch(self, busy_seconds: float, cpu_seconds: float) -> None:
        """Note a batch, the time that a worker spent on it, and how much of it computing."""
        if self._staffing is None:
            return
        self._staffing.note_batch(busy_seconds, cpu_seconds)
        self._num_batches += 1
        if self._num_batches % BATCHES_BETWEEN_LOOKS == 0:
            self._look(may_grow=False)

    def welcome(self) -> None:
        """Let workers take part that have started."""
        if self._staffing is not None:
            self._staffing.restart(time.monotonic())
            self._open_turns()

    def _open_turns(self) -> None:
        self._turns.num_open = max(1, min(self._pool.num_ready, self._num_wanted))

    def _look(self, *, may_grow: bool) -> None:
        pool, staffing = self._pool, self._staffing
        if staffing is None or pool.num_ready < pool.num_live:
            return
        wanted = staffing.wanted(self._num_wanted, time.monotonic(), may_grow=may_grow)
        if wanted > self._num_wanted:
            affordable = self._lookahead.affordable(pool.arena.slot_bytes)
            wanted = max(self._num_wanted, min(wanted, affordable))
        if wanted > pool.num_live:
            if not self._may_grow():
                return
            pool.resize(wanted)
        self._num_wanted = wanted
        self._open_turns()
        # Who is to leave gets no more tasks, and goes when those that it has are done.
        while pool.num_live > wanted and self._is_idle(pool.num_live - 1):
            pool.resize(pool.num_live - 1)

    def _is_idle(self, worker: int) -> bool:
        head_start = self._pool.head_start
        has_next = head_start is not None and not head_start.turns.is_idle(worker)
        return self._turns.is_idle(worker) and not has_next
