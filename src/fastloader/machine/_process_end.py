"""Tells when another process has ended, whoever holds what it had open, and ends this one with it."""

import fcntl
import os
import signal
import sys
from contextlib import suppress

__all__ = ["end_with_writer", "open_sentinel"]


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


def end_with_writer(descriptor: int) -> None:
    """Let the system kill this process once nobody can write to a pipe any more, on Linux.

    Whatever it is busy with, and without a thread that waits: the system sends a signal where a pipe
    can be read from, as it can be at its end.

    Args:
        descriptor: The end to read from, of a pipe that nothing is written to; left open.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):  # a sandbox that has no such signals
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
