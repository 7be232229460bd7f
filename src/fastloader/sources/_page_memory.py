"""Memory for the pages of Parquet files, used again for the pages that come after them."""

import numpy as np
import numpy.typing as npt

from fastloader.shm import PrivateBlock

__all__ = ["PageBlocks", "PageMemory"]

_KEPT_BYTES = 4 << 20
"""Of one thread, when it reads nothing."""
_KEPT_LARGE_BYTES = 32 << 20
"""Of one thread for a large page: as many rows as one reads at once have no more, as a rule."""


class PageMemory:
    """Blocks that are free. Fresh memory costs a page fault every 4096 bytes.

    **Threads:** each has its own.
    """

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.uint8]] = []
        self._large = np.empty(0, np.uint8)

    def large(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return memory for a page of megabytes, whose content holds until it is asked for again."""
        if num_bytes > _KEPT_LARGE_BYTES:
            return np.empty(num_bytes, np.uint8)
        if len(self._large) < num_bytes:
            self._large = np.empty(0, np.uint8)  # not to be held beside the next
            self._large = PrivateBlock(num_bytes).view()
        return self._large[:num_bytes]

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a block that is large enough, which holds anything."""
        fits = [at for at, block in enumerate(self._free) if len(block) >= num_bytes]
        if fits:
            return self._free.pop(min(fits, key=lambda at: len(self._free[at])))
        return np.empty(num_bytes, np.uint8)

    def give_back(self, block: npt.NDArray[np.uint8]) -> None:
        """Take a block back; of what is too much, the oldest is let go of.

        Args:
            block: From `take`; nothing may refer to it any more.
        """
        self._free.append(block)
        while sum(map(len, self._free)) > _KEPT_BYTES:
            del self._free[0]


class PageBlocks:
    """The blocks of one page."""

    def __init__(self, memory: PageMemory) -> None:
        """Start without any.

        Args:
            memory: Where they come from and go to.
        """
        self._memory = memory
        self._taken: list[npt.NDArray[np.uint8]] = []

    def take(self, num_bytes: int) -> memoryview:
        """Return memory to write to, until `give_back`."""
        block = self._memory.take(num_bytes)
        self._taken.append(block)
        return block[:num_bytes].data

    def give_back(self) -> None:
        """Give all back: what was made of the page has been copied by now."""
        for block in self._taken:
            self._memory.give_back(block)
        self._taken.clear()
