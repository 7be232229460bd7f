"""What a process and its descendants have used: CPU time, page faults, memory."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["TreeCost", "tree_cost", "tree_memory_bytes"]

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
