"""Pixels of record batches that are brought to memory where they are written, not before."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.shm import ArrayWriter
from fastloader.sources._protocol import WritePixels

__all__ = ["ApartPixels", "LoadPixels", "PieceRows", "ReadPixels"]

Integers: TypeAlias = npt.NDArray[np.int64]
LoadPixels: TypeAlias = Callable[[int], npt.NDArray[Any]]
"""Returns so many of the first pixels of a record batch, or more: numbers of its lists, or bytes."""

ReadPixels: TypeAlias = Callable[[npt.NDArray[Any], npt.NDArray[Any]], None]
"""Fills the second array with what the first holds, pages of a mapped file that nobody looks at."""

_STEP_BYTES = 1 << 20
"""Read from a file at once: memory that was just taken is still in the processor's cache."""


class ApartPixels:
    """The pixels of several record batches as if they were one array, of which slices are taken.

    **Threads:** one at a time; what comes next may be loaded in others meanwhile.
    """

    def __init__(
        self,
        num_items: Sequence[int],
        loads: Sequence[LoadPixels],
        read: ReadPixels | None = None,
    ) -> None:
        """Take how to get at them.

        Args:
            num_items: Numbers or bytes of each record batch.
            loads: Get them, one function for each batch.
            read: Reads what they get; None where it is in memory.
        """
        self.starts = np.array(list(accumulate(num_items, initial=0))[:-1], np.int64)
        """First item of each record batch: no slice may reach over one."""
        self._num_items = np.array(num_items, np.int64)
        self._needed = np.zeros(len(num_items), np.int64)
        self._loads = loads
        self._read = read
        self._number = -1
        self._values: npt.NDArray[Any] | None = None
        self._pool: Executor | None = None
        self._ahead: dict[int, Future[npt.NDArray[Any]]] = {}
        self._num_ahead = 0

    def need(self, start: Integers, stop: Integers) -> None:
        """Tell which slices will be taken: what comes after them need not be decompressed.

        Args:
            start: First item of each.
            stop: Item after the last of each.
        """
        number = np.searchsorted(self.starts, start, "right") - 1
        np.maximum.at(self._needed, number, stop - self.starts[number])

    def load_ahead(self, pool: Executor, num_ahead: int) -> None:
        """Load record batches in threads, in order, from when the first is asked for.

        Args:
            pool: Threads.
            num_ahead: How many batches to load at once.
        """
        self._pool, self._num_ahead = pool, num_ahead

    def __getitem__(self, items: slice) -> npt.NDArray[Any]:
        return self._in_memory(self._find(items))

    def write(
        self,
        items: slice,
        dtype: np.dtype[Any],
        write: WritePixels,
        offset: int,
        *,
        are_bytes: bool,
    ) -> bool:
        """Read a slice from a file, straight to where it belongs if that is in memory.

        Args:
            items: The slice.
            dtype: Of the pixels.
            write: Puts them in their place.
            offset: Position of the first byte there.
            are_bytes: Whether pixels are there as bytes.

        Returns:
            False if nothing was written, as it is in memory or of another type.
        """
        if self._read is None:
            return False
        values = self._find(items)
        if are_bytes:
            values = values.view(dtype)
        if values.dtype != dtype:
            return False
        step = _STEP_BYTES // dtype.itemsize
        for start in range(0, len(values), step):
            some, at = values[start : start + step], offset + start * dtype.itemsize
            if isinstance(write, ArrayWriter):
                self._read(some, write.view(at, some.shape, dtype))
            else:
                write(at, self._in_memory(some))
        return True

    def close(self) -> None:
        """Let go of what was got last."""
        self._values = None

    def _in_memory(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._read is None:
            return values
        there = np.empty_like(values)
        self._read(values, there)
        return there

    def _find(self, items: slice) -> npt.NDArray[Any]:
        number = int(np.searchsorted(self.starts, items.start, "right")) - 1
        first = int(self.starts[number])
        if (
            number != self._number
            or self._values is None
            or len(self._values) < items.stop - first
        ):
            self.close()  # so that two are never held
            self._values = self._load(number, items.stop - first)
            self._number = number
        return self._values[items.start - first : items.stop - first]

    def _load(self, number: int, num_items: int) -> npt.NDArray[Any]:
        future = self._ahead.pop(number, None)
        self._submit(number)
        if future is not None:
            return future.result()
        return self._loads[number](max(num_items, int(self._needed[number])))

    def _submit(self, number: int) -> None:
        """Let those batches be loaded that come next after one, and let go of others."""
        if self._pool is None:
            return
        last = min(number + self._num_ahead, len(self._loads) - 1)
        self._ahead = {
            after: self._ahead.get(after)
            or self._pool.submit(self._loads[after], int(self._num_items[after]))
            for after in range(number + 1, last + 1)
        }


PieceRows: TypeAlias = tuple[pa.StructArray, ApartPixels | None]
"""Chunks or planes of images; lists of pixels in them may be of nothing, and say only which items
of those that lie apart are theirs."""
