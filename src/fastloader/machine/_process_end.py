"""Tells when another process has ended, whoever holds what it had open."""

import os
import sys

__all__ = ["open_sentinel"]


def open_sentinel(pid: int | None) -> int | None:
    """Return a descriptor that can be read from when a process has ended, to be closed by the caller.

    The sentinels of multiprocessing are pipes, which tell nothing while some child of the process
    that has ended holds its end of them, too.

    Args:
        pid: Of the process.

    Returns:
        None where the system has no such descriptors, or gives none.
    """
    if sys.platform != "linux" or pid is None:
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
