"""What a run costs: CPU seconds, page faults and memory of a process and its descendants."""

import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

__all__ = ["PeakMemory", "TreeCost", "tree_cost", "tree_memory_bytes"]

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class TreeCost:
    """What a process tree has used since it began; the difference of two is a run's cost."""

    cpu_seconds: float
    """User and system time; live descendants count in clock ticks (mostly 10 ms)."""
    page_faults: int
    """Minor and major faults; of live descendants only on Linux."""

    def __sub__(self, earlier: "TreeCost") -> "TreeCost":
        return TreeCost(
            self.cpu_seconds - earlier.cpu_seconds, self.page_faults - earlier.page_faults
        )


def tree_cost() -> TreeCost:
    """Return what this process, its live descendants and its ended children have used."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    page_faults = own.ru_minflt + own.ru_majflt + ended.ru_minflt + ended.ru_majflt
    for child in psutil.Process().children(recursive=True):
        live = _live_cost(child.pid)
        cpu_seconds += live.cpu_seconds
        page_faults += live.page_faults
    return TreeCost(cpu_seconds, page_faults)


def _live_cost(pid: int) -> TreeCost:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return _live_cost_elsewhere(pid)
    # Fields after the name, which may itself hold spaces and brackets; see proc(5).
    fields = [int(field) for field in stat.rpartition(")")[2].split()[1:]]
    return TreeCost(sum(fields[10:14]) / _TICKS_PER_SECOND, sum(fields[6:10]))


def _live_cost_elsewhere(pid: int) -> TreeCost:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return TreeCost(0.0, 0)
    return TreeCost(times.user + times.system, 0)


def tree_memory_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants, shared pages counted once.

    This is the sum of proportional set sizes (PSS) on Linux and of resident sizes elsewhere.

    Args:
        pid: Root of the tree.
    """
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(_memory_bytes(process) for process in processes)


def _memory_bytes(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(memory, "pss", memory.rss))


class PeakMemory:
    """Watches the memory of a process tree from a thread while a block runs.

    Reading PSS walks page tables and takes locks of the watched process, so never time a run
    that is being watched.
    """

    def __init__(self, pid: int, *, period_seconds: float = 0.02) -> None:
        """Prepare to watch the tree below `pid`, once per `period_seconds`."""
        self.peak_bytes = 0
        self._pid = pid
        self._period_seconds = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_memory_bytes(self._pid))
            if self._stop.wait(self._period_seconds):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
