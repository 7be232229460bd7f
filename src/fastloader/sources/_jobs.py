"""Work that falls into parts, done by all cores: here, in threads or in child processes."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Protocol, TypeAlias

from fastloader.sources._job_processes import JobProcesses
from fastloader.sources._number_pipe import NumberPipe

__all__ = ["Job", "TakeResult", "run_job"]

_WORTH_STARTING_SECONDS = 0.5
"""A child takes 0.15 s of a core to import what it needs: start some for more than this."""


class Job(Protocol):
    """Work in parts that do not depend on each other; picklable if processes may do it.

    A `fastloader.sources._job_processes.BufferedJob` if what children make is large.
    """

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        ...

    def run(self, part: int) -> Any:
        """Do one part and return what came out, in any process and thread.

        Args:
            part: Its number, from 0.
        """
        ...


TakeResult: TypeAlias = Callable[[int, Any], None]
"""Takes the number of a part and its result, one call at a time, in any order."""


def run_job(
    job: Job, take_result: TakeResult, *, num_cores: int | None, in_processes: bool = False
) -> None:
    """Do all parts of a job; the first error ends it and is raised.

    Args:
        job: What to do.
        take_result: Is called for each part.
        num_cores: Parts to work on at once; as many as this process may if None.
        in_processes: The interpreter's lock is held most of the time, so that threads would
            wait for each other. Children are started once the rest is known to be long enough.

    Raises:
        WorkerDiedError: If a child process ended by itself.
    """
    if job.num_parts > 1 and num_cores is None:
        num_cores = _count_usable_cores()
    num_cores = min(num_cores or 1, job.num_parts)
    if num_cores > 1 and in_processes and os.name == "posix":
        _run_with_children(job, take_result, num_cores - 1)
    elif num_cores > 1:
        _run_in_threads(job, take_result, num_cores)
    else:
        for part in range(job.num_parts):
            take_result(part, job.run(part))


def _run_in_threads(job: Job, take_result: TakeResult, num_threads: int) -> None:
    # No more threads than parts are at work, so that a part's memory is all that waits.
    with ThreadPoolExecutor(num_threads, "fastloader-decode") as pool:
        futures = {pool.submit(job.run, part): part for part in range(job.num_parts)}
        try:
            for future in as_completed(futures):
                take_result(futures.pop(future), future.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _run_with_children(job: Job, take_result: TakeResult, num_children: int) -> None:
    """Work here, and let children help if the first parts say that it is worth it."""
    start = time.monotonic()
    queue = NumberPipe.of(range(job.num_parts)).end()
    with queue, JobProcesses(job, queue) as children:
        num_done = 0
        while (part := queue.take()) is not None:
            take_result(part, job.run(part))
            num_done += 1
            if children.num_started:
                children.receive(take_result)
                continue
            rest = (time.monotonic() - start) / num_done * (job.num_parts - num_done)
            if rest > _WORTH_STARTING_SECONDS:
                children.start(num_children)
        children.finish(take_result)


def _count_usable_cores() -> int:
    """Return how many cores this process may keep busy: one in a loader's worker."""
    from fastloader.machine._machine import read_machine  # noqa: PLC0415 - torch, which children go without

    machine = read_machine()
    return 1 if machine.is_worker else machine.rank_cpus
