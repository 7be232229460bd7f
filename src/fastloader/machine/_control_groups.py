"""What the control groups of this process let it have: CPU time and memory, in versions 1 and 2."""

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePosixPath
from typing import NamedTuple

from fastloader.machine._system_files import read_field, read_text

__all__ = ["read_free_bytes", "read_quota_cpus"]

_NO_LIMIT = 1 << 60
"""Version 1 writes no limit as a number near 2**63."""


class _Limit(NamedTuple):
    """Of the memory of one group, and where to read how much of it is taken."""

    num_bytes: int
    usage_path: str
    statistics_path: str
    cache_name: str
    """Of the file pages in memory that can be given up."""


def read_quota_cpus(root: str) -> float | None:
    """Return the CPUs' worth of time that the groups grant, None without a limit.

    Limits, of memory as well, are read once in each process, as that takes longer than all else that
    a new loader asks. A process that is moved, or granted more, keeps to what it had.

    Args:
        root: Where the file systems ``proc`` and ``sys`` are mounted.
    """
    return _quota_cpus(root, os.getpid())


@lru_cache(maxsize=16)
def _quota_cpus(root: str, _process: int) -> float | None:
    quotas = []
    for folder in _folders(root, "cpu"):
        words = read_text(
            f"{folder}/cpu.max"
        ).split()  # version 2: "max 100000", "50000 100000"
        if not words:
            words = read_text(f"{folder}/cpu.cfs_quota_us").split()  # version 1: -1 is no limit
            words += read_text(f"{folder}/cpu.cfs_period_us").split()
        if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def read_free_bytes(root: str, enough: int) -> int:
    """Return the memory that all groups may still take, at most `enough`.

    Args:
        root: Where the file systems ``proc`` and ``sys`` are mounted.
        enough: What is there in any case.
    """
    for limit in _memory_limits(root, os.getpid()):
        usage = read_text(limit.usage_path).strip()
        if not usage.isdecimal():
            continue
        free = limit.num_bytes - int(usage)
        if free < enough:
            # Cached file pages count as used but are given up on demand. The system adds them up
            # when it is asked, which takes a tenth of a millisecond.
            free += read_field(limit.statistics_path, limit.cache_name) or 0
        enough = min(enough, free)
    return enough


@lru_cache(maxsize=16)
def _memory_limits(root: str, _process: int) -> tuple[_Limit, ...]:
    found = []
    for folder in _folders(root, "memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            text = read_text(f"{folder}/{limit_name}").strip()
            if text.isdecimal() and int(text) < _NO_LIMIT:
                paths = f"{folder}/{usage_name}", f"{folder}/memory.stat"
                found.append(_Limit(int(text), *paths, cache_name))
    return tuple(found)


def _folders(root: str, controller: str) -> Iterator[str]:
    """Yield the folders of all control groups of this process, outward.

    A limit of an outer group binds as well. See cgroups(7) and proc_pid_mountinfo(5).
    """
    mounts = list(_mounts(root, controller))
    for line in read_text(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if controllers else 2
        if version == 1 and controller not in controllers.split(","):
            continue
        for mount_version, mount_root, mount_point in mounts:
            if mount_version != version:
                continue
            # In a container the mount may start at the container's own group.
            inside = PurePosixPath(path.removeprefix(mount_root.rstrip("/")).lstrip("/"))
            for group in (inside, *inside.parents):
                yield f"{root}{mount_point}/{group}"


def _mounts(root: str, controller: str) -> Iterator[tuple[int, str, str]]:
    """Yield version, root within the hierarchy and mount point of each."""
    for line in read_text(f"{root}/proc/self/mountinfo").splitlines():
        mount, _, file_system = line.partition(" - ")
        words, system = mount.split(), file_system.split()
        if system[:1] == ["cgroup2"]:
            yield 2, words[3], words[4]
        elif system[:1] == ["cgroup"] and controller in system[2].split(","):
            yield 1, words[3], words[4]
