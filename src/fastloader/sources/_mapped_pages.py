"""Pages of mapped files that were read, and count as memory of the process for as long as it has them."""

import mmap
from typing import Any

import numpy.typing as npt

from fastloader.machine._huge_pages import advise

__all__ = ["let_go_of_pages"]

_MADV_DONTNEED = 4  # of Linux, the only system that `advise` asks


def let_go_of_pages(addresses: range, content: npt.NDArray[Any]) -> None:
    """Take pages out of this process; who looks at them again has them from the file.

    Args:
        addresses: Of the mapping of a file, to whose parts that are given nobody writes: anywhere
            else what they hold would be lost.
        content: Contiguous; left alone if it is not there.
    """
    start = content.ctypes.data
    stop = start + content.nbytes
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # others may be on the outer ones
    last = stop // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and start in addresses and stop - 1 in addresses:
        advise(first, last - first, _MADV_DONTNEED)
