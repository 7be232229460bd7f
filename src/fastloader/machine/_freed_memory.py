"""Lets the C library keep the memory of arrays that are freed, for those of the next sample."""

import ctypes
from functools import cache

import numpy as np

__all__ = ["keep_all_freed_memory", "keep_some_freed_memory"]

_LARGEST_BYTES = (32 << 20) - (64 << 10)
"""Just below glibc's bound (DEFAULT_MMAP_THRESHOLD_MAX of mallopt(3)), which counts its header."""


def keep_all_freed_memory() -> None:
    """Keep freed memory however much it is.

    glibc gives large blocks back at once and takes them anew for the next batch, at a page
    fault for every 4 kB; 2 to 4 times the cost of the arithmetic on them.

    **Processes:** workers, which do the same work over and over and nothing else.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


@cache
def keep_some_freed_memory() -> None:
    """Keep freed memory up to 64 MB, as any process does that has freed a batch of 32 MB; once is enough.

    glibc keeps more when it sees that a large block was freed. A loader that makes a new tensor
    for each batch frees one after each and so brings that about; batches in buffers that are used
    again are never freed, and arrays of a sample would be taken anew, page by page, each time.
    That doubled the CPU time of reading and augmenting images of one megabyte.

    **Processes:** the caller's own, whose memory is not the loader's alone: no setting of it is
    changed. Other allocators do not mind.
    """
    np.empty(_LARGEST_BYTES, np.uint8)  # freed at once, never touched
