"""Threads that stand by to share out the parts of one job after the other."""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

__all__ = ["Crew", "current_crew", "share_out", "working_with"]

Job: TypeAlias = Callable[[], None]


class Crew:
    """A few threads for work that leaves the interpreter free, such as copying arrays.

    Starting threads anew for each batch takes as long as copying a small one; an executor
    makes a lock and a condition for each part. Here a part costs two entries of a queue.

    **Threads:** started by the first job of several parts, ended by `close`; one thread at a
    time may give jobs. In a forked child, which has none of them, the caller does all.

    Args:
        num_threads: Besides the caller, who does its share.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.experience: set[Any] = set()
        """For who gives jobs: what they have done before."""
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def do(self, jobs: Sequence[Job]) -> None:
        """Do all jobs, in any order, and wait for the last one.

        Args:
            jobs: Each is called once. The first error that one of them raises is raised here
                when all are over.
        """
        if len(jobs) == 1 or self.num_threads == 0 or os.getpid() != self._pid:
            for job in jobs:
                job()
            return
        self._start()
        for job in jobs:
            self._jobs.put(job)
        self._work(waits=False)
        results = [self._results.get() for _ in jobs]
        for error in results:
            if error is not None:
                raise error

    def is_here(self) -> bool:
        """Tell whether the caller is one of the threads."""
        return threading.current_thread() in self._threads

    def close(self) -> None:
        """End the threads; harmless when repeated."""
        threads, self._threads = self._threads, []
        if os.getpid() != self._pid:
            return
        for _ in threads:
            self._jobs.put(None)
        if threading.current_thread() in threads:  # as the garbage collector may be
            return
        for thread in threads:
            thread.join()

    def _start(self) -> None:
        while len(self._threads) < self.num_threads:
            # Daemonic: an iterator that is alive when the interpreter ends must not stop it.
            thread = threading.Thread(target=self._work, name="fastloader-crew", daemon=True)
            thread.start()
            self._threads.append(thread)

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
    crew = current_crew()
    if crew is not None or num_parts == 1:
        (crew or Crew(0)).do(jobs)
        return
    crew = Crew(num_parts - 1)
    try:
        crew.do(jobs)
    finally:
        crew.close()
