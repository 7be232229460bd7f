"""Huge pages of memory: whether there are any, and how the system is told where they are wanted."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fastloader.machine._system_files import read_text

__all__ = ["HUGE_BYTES", "advise", "gives_huge_pages_if_asked"]

HUGE_BYTES = 2 << 20
"""Of a huge page."""


def gives_huge_pages_if_asked(root: Path = Path("/")) -> bool:
    """Return whether the system has huge pages and its administrator has not turned them off.

    Args:
        root: Where the file system ``sys`` is mounted.
    """
    enabled = read_text(f"{root}/sys/kernel/mm/transparent_hugepage/enabled")
    return enabled != "" and "[never]" not in enabled


def advise(address: int, num_bytes: int, advice: int) -> bool:
    """Tell the system how memory is used, by a number that `mmap` does not know.

    Args:
        address: First byte; of a page.
        num_bytes: Of the memory.
        advice: One of Linux's ``MADV_`` numbers.

    Returns:
        Whether it heeds it: not where it is too old, has no page left, or is not Linux.
    """
    return _madvise()(address, num_bytes, advice) == 0


@cache
def _madvise() -> Callable[[int, int, int], int]:
    if sys.platform != "linux":
        return lambda *_: -1
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
