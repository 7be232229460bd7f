"""Writes arrays into memory of this process."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fastloader.shm._fresh_pages import FreshPages

__all__ = ["ArrayWriter"]


class ArrayWriter:
    """Puts arrays at positions in a block of bytes.

    Calling it copies an array that exists already; `view` and `parts` let the bytes be made where
    they stay.

    **Threads:** any number, each at positions of its own.
    """

    def __init__(self, block: npt.NDArray[np.uint8]) -> None:
        """Write to a block, which stays the caller's.

        Args:
            block: Written to, contiguous.
        """
        self._block = block
        self._pages = FreshPages(block)

    def __call__(self, offset_bytes: int, array: npt.NDArray[Any]) -> None:
        """Copy an array into the block.

        Args:
            offset_bytes: Position of its first byte.
            array: Contiguous, any dtype.
        """
        content = array.reshape(-1).view(np.uint8)
        for start, stop in self._pages.parts(offset_bytes, offset_bytes + len(content)):
            self._block[start:stop] = content[start - offset_bytes : stop - offset_bytes]

    def parts(self, offset_bytes: int, num_bytes: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield parts of the block, in order, each to be written to before the next is asked for.

        Args:
            offset_bytes: Position of the first byte.
            num_bytes: Of all parts, inside the block.
        """
        for start, stop in self._pages.parts(offset_bytes, offset_bytes + num_bytes):
            yield self._block[start:stop]

    def view(
        self, offset_bytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        """Return a part of the block as an array to write to.

        Args:
            offset_bytes: Position of its first byte.
            shape: Sizes, all inside the block.
            dtype: Type of the elements.
        """
        part = np.ndarray(shape, dtype, self._block, offset_bytes)
        for _ in self._pages.parts(offset_bytes, offset_bytes + part.nbytes):
            pass
        return part
