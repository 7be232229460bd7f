"""Pixels of record batches that are brought to memory where they are written, not before."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["ApartPixels", "LetGo", "LoadPixels", "PieceRows"]

Integers: TypeAlias = npt.NDArray[np.int64]
LoadPixels: TypeAlias = Callable[[int], npt.NDArray[Any]]
"""Returns so many of the first pixels of a record batch, or more: numbers of its lists, or bytes."""

LetGo: TypeAlias = Callable[[npt.NDArray[Any]], None]
"""Takes what was loaded and is not needed any more."""


class ApartPixels:
    """The pixels of several record batches as if they were one array, of which slices are taken.

    **Threads:** one at a time; what comes next may be loaded in others meanwhile.
    """

    def __init__(
        self,
        num_items: Sequence[int],
        loads: Sequence[LoadPixels],
        let_go: LetGo | None = None,
    ) -> None:
        """Take how to get at them.

        Args:
            num_items: Numbers or bytes of each record batch.
            loads: Get them, one function for each batch.
            let_go: Called with what was got, once another one is asked for or all are written.
        """
        self.starts = np.array(list(accumulate(num_items, initial=0))[:-1], np.int64)
        """First item of each record batch: no slice may reach over one."""
        self._num_items = np.array(num_items, np.int64)
        self._needed = np.zeros(len(num_items), np.int64)
        self._loads = loads
        self._let_go = let_go
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

    def close(self) -> None:
        """Let go of what was got last."""
        if self._let_go is not None and self._values is not None:
            self._let_go(self._values)
        self._values = None

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
