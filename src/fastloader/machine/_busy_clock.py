"""How long threads computed, and how long they waited for a core that others had."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["ThreadTime", "read_queued", "read_thread", "read_threads"]

_THREAD = Path("/proc/thread-self/schedstat")
_TASKS = Path("/proc/self/task")
_OTHERS = Path("/proc")


class ThreadTime(NamedTuple):
    """Of one thread; the difference of two is what passed between them."""

    ran_seconds: float
    queued_seconds: float
    """Ready to compute, without a core; 0 where the system does not tell."""

    def since(self, earlier: "ThreadTime") -> "ThreadTime":
        """Return what passed since another reading."""
        return ThreadTime(
            self.ran_seconds - earlier.ran_seconds,
            self.queued_seconds - earlier.queued_seconds,
        )


def read_thread() -> ThreadTime:
    """Return the time of the calling thread."""
    found = _read(_THREAD)
    return ThreadTime(time.thread_time(), 0.0) if found is None else found


def read_threads() -> dict[int, ThreadTime]:
    """Return the time of each thread of the process by its number; empty elsewhere than on Linux.

    CPU time alone calls a thread idle that others keep from its core: on a busy machine that
    looks like waiting for a file.
    """
    with suppress(OSError):
        read = {int(task.name): _read(task / "schedstat") for task in _TASKS.iterdir()}
        return {number: found for number, found in read.items() if found is not None}
    return {}


def read_queued(pids: Iterable[int | None]) -> dict[int, float]:
    """Return how many seconds the main threads of processes have waited for a core, by pid.

    Args:
        pids: Of the processes; those of which nothing is told are left out.
    """
    times = {pid: _read(_OTHERS / str(pid) / "schedstat") for pid in pids if pid is not None}
    return {pid: time.queued_seconds for pid, time in times.items() if time is not None}


def _read(path: Path) -> ThreadTime | None:
    try:
        ran, queued = path.read_text(encoding="ascii").split()[:2]
        return ThreadTime(int(ran) / 1e9, int(queued) / 1e9)
    except (OSError, ValueError):
        return None
