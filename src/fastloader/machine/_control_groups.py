"""What the control groups of this process let it have: CPU time and memory, in versions 1 and 2."""

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from fastloader.machine._system_files import read_field, read_text

__all__ = ["read_free_bytes", "read_limits", "read_quota_cpus"]

_NO_LIMIT = 1 << 60
"""Version 1 writes no limit as a number near 2**63."""


class _Limit(NamedTuple):
    """Of the memory of one group, and where to read how much of it is taken."""

    num_bytes: int
    usage_path: str
    statistics_path: str
    cache_name: str
    """Of the file pages in memory that can be given up."""


def read_limits() -> None:
    """Read the limits of this process now, which else its first loader does: in half a millisecond."""
    _quota_cpus("", os.getpid())
    _memory_limits("", os.getpid())


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
            ("memory.high", "memory.current", "inactive_file"),  # past it all is slowed down
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
    groups, mounts = _groups_and_mounts(root, os.getpid())
    for controllers, path in groups:
        if controllers and controller not in controllers.split(","):
            continue
        for mount in mounts:
            if mount.serves(controllers, controller):
                # In a container the mount may start at the container's own group.
                inside = path.removeprefix(mount.root.rstrip("/")).strip("/")
                while inside:
                    yield f"{root}{mount.point}/{inside}"
                    inside = inside.rpartition("/")[0]
                yield f"{root}{mount.point}"


class _Mount(NamedTuple):
    """Where control groups are to be seen."""

    root: str
    """Of what is mounted, within the hierarchy."""
    point: str
    options: str | None
    """Names the controllers in version 1; None in version 2, which has one hierarchy."""

    def serves(self, controllers: str, controller: str) -> bool:
        """Return whether a group of a hierarchy is seen here.

        Args:
            controllers: Of the hierarchy; none in version 2.
            controller: That is asked for.
        """
        if self.options is None:
            return not controllers
        return bool(controllers) and controller in self.options.split(",")


@lru_cache(maxsize=16)
def _groups_and_mounts(root: str, _process: int) -> tuple[list[tuple[str, str]], list[_Mount]]:
    """Return controllers and path of each group of this process, and where groups are mounted."""
    groups = []
    for line in read_text(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups.append((controllers, path))
    mounts = []
    for line in read_text(f"{root}/proc/self/mountinfo").splitlines():
        mount, is_there, file_system = line.partition(" - cgroup")
        if is_there:
            words = mount.split()
            options = None if file_system[:1] == "2" else file_system.split()[-1]
            mounts.append(_Mount(words[3], words[4], options))
    return groups, mounts
