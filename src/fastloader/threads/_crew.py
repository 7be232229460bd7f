"""Threads that stand by to share out the parts of one job after the other."""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader._extension_modules import ROW_TEAM, extension_module

__all__ = [
    "Crew",
    "RowCopy",
    "copy_rows",
    "current_crew",
    "row_team",
    "rows_at",
    "share_out",
    "working_with",
]

Job: TypeAlias = Callable[[], None]


class RowCopy(NamedTuple):
    """Rows to copy one after the other, by their addresses: number i lies at base + stride * positions[i]."""

    base: int
    stride: int
    num_sources: int
    """All positions are below it."""
    positions: npt.NDArray[np.int64]
    """Contiguous, shape ``(B,)``."""
    row_bytes: int
    """Of each; above 0. Whole lines of 64 where they go past the cache."""
    target: int
    """Address of the first byte; at a multiple of 16 where they go past the cache."""
    is_past_cache: bool = False
    """Whether they are written past the processor's cache."""


_END_OF_MEMORY = (1 << 63) - 1


def rows_at(
    addresses: Sequence[int], row_bytes: int, target: int, *, is_past_cache: bool = False
) -> RowCopy:
    """Return the copy of rows that lie anywhere.

    Args:
        addresses: Of the rows.
        row_bytes: As in `RowCopy`.
        target: As in `RowCopy`.
        is_past_cache: As in `RowCopy`.
    """
    sources = np.array(addresses, np.int64)
    return RowCopy(0, 1, _END_OF_MEMORY, sources, row_bytes, target, is_past_cache)


@cache
def row_team() -> ModuleType | None:
    """Return the module in C by which `copy_rows` copies; None where it was not compiled."""
    module = extension_module(ROW_TEAM)
    return module if hasattr(module, "Team") else None


@cache
def _alone() -> Any:
    return row_team().Team(0)  # type: ignore[union-attr]


class Crew:
    """A few threads for work that leaves the interpreter free, such as copying arrays.

    Starting threads anew for each batch takes as long as copying a small one; an executor
    makes a lock and a condition for each part. Here a part costs two entries of a queue. Rows are copied by
    others, which wait for them in C, as to have the interpreter twice takes as long as half a megabyte.

    **Threads:** started by the first job of several parts, ended by `close`; one thread at a
    time may give jobs. In a forked child, which has none of them, the caller does all, and after `close`:
    Ctrl-C may have left a crew lent.

    Args:
        num_threads: Besides the caller, who does its share.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._pid = os.getpid()
        self._is_closed = False
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._copiers: list[threading.Thread] = []
        self._team: Any = None

    def do(self, jobs: Sequence[Job]) -> None:
        """Do all jobs, in any order, and wait for the last one.

        Args:
            jobs: Each is called once. The first error that one of them raises is raised here
                when all are over.
        """
        if len(jobs) == 1 or self.num_threads == 0 or not self._has_helpers:
            for job in jobs:
                job()
            return
        self._start(self._threads, self._work, self.num_threads)
        for job in jobs:
            self._jobs.put(job)
        self._work(waits=False)
        results = [self._results.get() for _ in jobs]
        for error in results:
            if error is not None:
                raise error

    def copy_rows(self, copy: RowCopy, num_helpers: int) -> None:
        """Copy rows; other threads have the interpreter meanwhile.

        Those that wait for a job sleep, and to wake them takes as long as some hundred kilobytes. So a
        small job is done alone unless it follows the last one within two tenths of a millisecond: then they are awake,
        as for so long they wait without sleeping after each such job.

        Args:
            copy: What; only where there is a `row_team`.
            num_helpers: That may help, besides the caller.

        Raises:
            IndexError: If a position is outside.
        """
        if not self._has_helpers:
            _alone().copy(*copy, 0)
            return
        module: Any = row_team()
        if self._team is None:
            self._team = module.Team(self.num_threads)
        start = partial(self._start, self._copiers, partial(_stand_by, self._team))
        num_helpers = min(num_helpers, self.num_threads)
        if len(copy.positions) * copy.row_bytes >= module.WORTH_A_CALL:
            start(num_helpers)
        if self._team.copy(*copy, num_helpers):
            start(num_helpers)

    def is_here(self) -> bool:
        """Tell whether the caller is one of the threads."""
        return threading.current_thread() in (*self._threads, *self._copiers)

    def close(self) -> None:
        """End the threads, for good; harmless when repeated."""
        self._is_closed = True
        workers, self._threads = self._threads, []
        copiers, self._copiers = self._copiers, []
        team, self._team = self._team, None
        if os.getpid() != self._pid:
            return
        for _ in workers:
            self._jobs.put(None)
        if team is not None:
            team.close()
        threads = [*workers, *copiers]
        if threading.current_thread() in threads:  # as the garbage collector may be
            return
        for thread in threads:
            thread.join()

    @property
    def _has_helpers(self) -> bool:
        return os.getpid() == self._pid and not self._is_closed

    @staticmethod
    def _start(
        threads: list[threading.Thread], work: Callable[[], None], num_threads: int
    ) -> None:
        while len(threads) < num_threads:
            # Daemonic: an iterator that is alive when the interpreter ends must not stop it.
            thread = threading.Thread(target=work, name="fastloader-crew", daemon=True)
            thread.start()
            threads.append(thread)

    def _work(self, waits: bool = True) -> None:
        while True:
            try:
                job = self._jobs.get(block=waits)
            except queue.Empty:
                return
            if job is None:
                return
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised by who gave the job
                self._results.put(error)
            else:
                self._results.put(None)


def _stand_by(team: Any) -> None:
    """Help with copies; a function of Python, so that who looks what threads do finds its name."""
    team.stand_by()


class _Current(threading.local):
    crew: Crew | None = None


_current = _Current()


def current_crew() -> Crew | None:
    """Return the crew that the loader lends to this thread, or None."""
    return _current.crew


class working_with:  # noqa: N801 - used like a function
    """Lend a crew to this thread while the block runs.

    A class, since a generator's context takes several times as long, and each batch needs one.

    Args:
        crew: None takes back what was lent.
    """

    __slots__ = ("_crew", "_previous")

    def __init__(self, crew: Crew | None) -> None:
        self._crew = crew

    def __enter__(self) -> None:
        self._previous = _current.crew
        _current.crew = self._crew

    def __exit__(self, *_error: object) -> None:
        _current.crew = self._previous


def share_out(num_rows: int, num_parts: int, work: Callable[[int, int], None]) -> None:
    """Do something for all rows of a batch, with a thread for each part.

    Args:
        num_rows: Rows of the batch.
        num_parts: Parts to make of them, which the crew of this thread does, or one of its own.
        work: Takes the first row and the row after the last; leaves the interpreter free.
    """
    edges = [num_rows * part // num_parts for part in range(num_parts + 1)]
    jobs = [partial(work, start, stop) for start, stop in pairwise(edges)]
    _with_crew(num_parts, lambda crew: crew.do(jobs))


def copy_rows(copy: RowCopy, num_threads: int) -> None:
    """Copy rows by compiled code; other threads have the interpreter meanwhile.

    Args:
        copy: What; only where there is a `row_team`.
        num_threads: The caller, and some of the crew of this thread, or of one of its own.

    Raises:
        IndexError: If a position is outside.
    """
    if num_threads == 1:
        _alone().copy(*copy, 0)
    else:
        _with_crew(num_threads, lambda crew: crew.copy_rows(copy, num_threads - 1))


def _with_crew(num_threads: int, work: Callable[[Crew], None]) -> None:
    lent = current_crew()
    crew = Crew(num_threads - 1) if lent is None else lent
    try:
        work(crew)
    finally:
        if lent is None:
            crew.close()
