"""Copies pixels of several batches in a row."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fastloader.sources._protocol import WritePixels

__all__ = ["HeldCopies"]


class HeldCopies:
    """Takes what is to be copied, and copies it later.

    To check a batch takes twice as long right after megabytes were copied, which leave nothing
    of its code and data in the processor's caches: 1.3 ms in place of 0.6. So where batches cost
    no memory, some are checked before the first of them is copied.
    """

    def __init__(self, write: WritePixels, held_bytes: int) -> None:
        """Start with nothing.

        Args:
            write: Copies an array to a place.
            held_bytes: How much to hold before `is_full`; with 0 nothing is held.
        """
        self._write = write
        self._held_bytes = held_bytes
        self._held: list[tuple[int, npt.NDArray[Any]]] = []
        self._num_bytes = 0

    def __call__(self, offset_bytes: int, array: npt.NDArray[np.generic]) -> None:
        """Take an array, which stays as it is.

        Args:
            offset_bytes: Position of its first byte.
            array: Held if it is a view; memory of its own is not kept.
        """
        if not self._held_bytes or array.base is None:
            self._write(offset_bytes, array)
            return
        self._held.append((offset_bytes, array))
        self._num_bytes += array.nbytes

    @property
    def is_full(self) -> bool:
        """True once it is time to `flush`."""
        return self._num_bytes >= self._held_bytes

    def flush(self) -> None:
        """Copy what is held."""
        for offset_bytes, array in self._held:
            self._write(offset_bytes, array)
        self._held.clear()
        self._num_bytes = 0
