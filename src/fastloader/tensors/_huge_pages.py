"""Moves small rows that lie in memory to huge pages, a little before each pass.

Rows in random order lie on other pages each, and to find where a page is takes the processor about as long as to
read a line of it: batches of 256 rows of 3 kB are copied in three quarters of the time from pages of 2 MB. Torch asks
for none. Linux moves memory to them where it is asked (``MADV_COLLAPSE``, 6.1): its contents, addresses and
size stay, and who reads meanwhile waits for a moment.
"""

import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import numpy as np
import torch

from fastloader.machine._huge_pages import (
    HUGE_BYTES,
    advise,
    gives_huge_pages_if_asked,
)

__all__ = ["HugePages"]

LEAST_BYTES = 32 << 20  # of a tensor: below, its pages are few enough to be remembered
MOST_ROW_BYTES = 64 << 10  # above, the next page of a row is known by then
LEAST_PASSES = 2  # that were made before: who reads the data once or twice gains nothing
SHARE = 0.1  # of the CPU time of a pass
DEAR_SECONDS = 1e-3
"""For a page: where free memory is in small pieces it takes up to 6 ms, which 100 passes do not bring back."""
NUM_TRIED = 8  # pages, until it is told whether they are dear
MADV_COLLAPSE = 25

_PRESENT, _FILE, _EXCLUSIVE = (np.uint64(1 << bit) for bit in (63, 61, 56))
_ENTRY_BYTES = 8

Collapse = Callable[[int, int], bool]
"""Takes the address and bytes of a page; returns whether to go on."""


class HugePages:
    """Moves the data of one loader, from its third pass on, in a tenth of the time of a pass.

    Time is what the loop's thread computes: a pause between two passes is none. Memory that another
    process shares since a fork is left alone: it would be there twice. So are files.

    **Processes:** belongs to the loader's own.

    Args:
        collapse: Moves a page.
        clock: CPU seconds of the loop's thread.
    """

    def __init__(
        self, collapse: Collapse | None = None, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._collapse = _collapse if collapse is None else collapse
        self._clock = clock
        self._last: float | None = None
        self._num_passes = 0
        self._pages: Iterator[tuple[int, int]] | None = None
        self._num_moved = 0
        self._moving_seconds = 0.0

    def begin_pass(self, find_tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Move some of the data, unless all is done.

        Args:
            find_tensors: Returns those whose rows are copied, each on the CPU; called once.
        """
        now = self._clock()
        pass_seconds = 0.0 if self._last is None else now - self._last
        self._last = now
        self._num_passes += 1
        if self._num_passes <= LEAST_PASSES:
            return
        if self._pages is None:
            self._pages = iter([*_pages_of(find_tensors())] if _may_collapse() else ())
        for address, num_bytes in self._pages:
            began = self._clock()
            if not self._collapse(address, num_bytes) or self._is_dear(began):
                self._pages = iter(())
                break
            if self._clock() - now >= SHARE * pass_seconds:
                break
        self._last = self._clock()

    def _is_dear(self, began: float) -> bool:
        self._num_moved += 1
        self._moving_seconds += self._clock() - began
        return self._num_moved >= NUM_TRIED and (
            self._moving_seconds > DEAR_SECONDS * self._num_moved
        )


def _pages_of(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[int, int]]:
    for tensor in tensors:
        suits = (
            tensor.is_contiguous()
            and tensor.nbytes >= LEAST_BYTES
            and tensor.nbytes // len(tensor) <= MOST_ROW_BYTES
        )
        if not suits:
            continue
        start = -(-tensor.data_ptr() // HUGE_BYTES) * HUGE_BYTES
        stop = (tensor.data_ptr() + tensor.nbytes) // HUGE_BYTES * HUGE_BYTES
        for address in range(start, stop, HUGE_BYTES):
            yield address, HUGE_BYTES


@cache
def _may_collapse() -> bool:
    return sys.platform == "linux" and gives_huge_pages_if_asked()


def _collapse(address: int, num_bytes: int) -> bool:
    try:
        if not _is_ours_alone(address, num_bytes):
            return True
    except OSError:
        return False
    return advise(address, num_bytes, MADV_COLLAPSE)


def _is_ours_alone(address: int, num_bytes: int, path: str = "/proc/self/pagemap") -> bool:
    """Tell whether no other process has any of these pages, and no file.

    Raises:
        OSError: If the system does not tell.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        num_entries = num_bytes // mmap.PAGESIZE
        content = os.pread(
            descriptor, num_entries * _ENTRY_BYTES, address // mmap.PAGESIZE * _ENTRY_BYTES
        )
    finally:
        os.close(descriptor)
    entries = np.frombuffer(content, np.uint64)
    wanted = _PRESENT | _EXCLUSIVE
    are_ours = (entries & (wanted | _FILE)) == wanted
    return len(entries) == num_entries and bool(are_ours.all())
