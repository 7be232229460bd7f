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
        if self._staffing is not None:
            self._staffing.begin_run(time.monotonic())
            self._open_turns()

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

    def note_batch(self, busy_seconds: float) -> None:
        """Note a batch, and the time that a worker has spent on it."""
        if self._staffing is None:
            return
        self._staffing.note_batch(busy_seconds)
        self._num_batches += 1
        if self._num_batches % BATCHES_BETWEEN_LOOKS == 0:
            self._look(may_grow=False)

    def welcome(self) -> None:
        """Let workers take part that have started."""
        if self._staffing is not None:
            self._staffing.restart(time.monotonic())
            self._open_turns()

    def _open_turns(self) -> None:
        self._turns.num_open = max(1, self._pool.num_ready)

    def _look(self, *, may_grow: bool) -> None:
        pool, staffing = self._pool, self._staffing
        if staffing is None or pool.num_ready < pool.num_live:
            return
        wanted = staffing.wanted(pool.num_live, time.monotonic())
        if wanted > pool.num_live:
            wanted = min(wanted, self._lookahead.affordable(pool.arena.slot_bytes))
            if may_grow and wanted > pool.num_live and self._may_grow():
                pool.resize(wanted)
        if pool.head_start is not None:
            return  # any worker may be at a task of the next run
        while wanted < pool.num_live and self._turns.is_idle(pool.num_live - 1):
            pool.resize(pool.num_live - 1)
            self._open_turns()
