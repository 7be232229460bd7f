"""Pixels of record batches that are brought to memory where they are written, not before."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.shm import ArrayWriter
from fastloader.sources._protocol import WritePixels

if TYPE_CHECKING:
    from fastloader.sources._image_runs import KnownRuns

__all__ = ["ApartPixels", "Fill", "LoadPart", "LoadPixels", "PieceRows", "ReadPixels"]

Integers: TypeAlias = npt.NDArray[np.int64]
LoadPixels: TypeAlias = Callable[[int], npt.NDArray[Any]]
"""Returns so many of the first pixels of a record batch, or more: numbers of its lists, or bytes."""

LoadPart: TypeAlias = Callable[[int, int], npt.NDArray[Any] | None]
"""Returns pixels of a record batch from one on to before another, alone; None if that cannot be."""

ReadPixels: TypeAlias = Callable[[npt.NDArray[Any], Iterable[npt.NDArray[np.uint8]]], None]
"""Fills bytes, one part after another, with what an array holds: pages of a mapped file that nobody
looks at."""


class Fill(NamedTuple):
    """What puts all pixels of a record batch where they stay."""

    dtype: np.dtype[Any]
    """Of its numbers; uint8 for bytes."""
    fill: Callable[[npt.NDArray[Any]], None]
    """Fills a contiguous array of that type."""


_GAP_ITEMS = 128 << 10
"""Between slices: sooner loaded than another part is begun."""
_WHOLE_SHARE = 0.75
"""Of a record batch: more of it takes less time as a whole."""
_STEP_BYTES = 2 << 20
"""Read from a file at once, where that takes memory for it."""


class ApartPixels:
    """The pixels of several record batches as if they were one array, of which slices are taken.

    **Threads:** one at a time; what comes next may be loaded in others meanwhile.
    """

    def __init__(
        self,
        num_items: Sequence[int],
        loads: Sequence[LoadPixels],
        read: ReadPixels | None = None,
        parts: Sequence[LoadPart | None] = (),
        fills: Sequence[Fill | None] = (),
        known: "KnownRuns | None" = None,
    ) -> None:
        """Take how to get at them.

        Args:
            num_items: Numbers or bytes of each record batch.
            loads: Get them, one function for each batch.
            read: Reads what they get; None where it is in memory.
            parts: Get what is needed without what is before it, one for each batch that has such.
            fills: Put all of it where it stays, one for each batch that has such.
            known: What was found out about a record batch that is kept; None if none is.
        """
        self.known = known
        self.starts = np.array(list(accumulate(num_items, initial=0))[:-1], np.int64)
        """First item of each record batch: no slice may reach over one."""
        self._num_items = np.array(num_items, np.int64)
        self._needed = np.zeros(len(num_items), np.int64)
        self._slices: list[tuple[Integers, Integers]] = []
        self._loads = loads
        self._parts = list(parts) or [None] * len(loads)
        self._fills = list(fills) or [None] * len(loads)
        self._filling: list[Future[None]] = []
        self._read = read
        self._number = -1
        self._first = 0
        self._values: npt.NDArray[Any] | None = None
        self._pool: Executor | None = None
        self._ahead: dict[int, Future[npt.NDArray[Any]]] = {}
        self._num_ahead = 0

    def need(self, start: Integers, stop: Integers) -> None:
        """Tell which slices will be taken: what comes after them need not be decompressed.

        Nor need what is before and between them, where parts can be got.

        Args:
            start: First item of each.
            stop: Item after the last of each.
        """
        number = np.searchsorted(self.starts, start, "right") - 1
        np.maximum.at(self._needed, number, stop - self.starts[number])
        self._slices.append((start, stop))

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
        """Read or decompress a slice straight to where it belongs, if that is in memory.

        It may not be there before `close`.

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
            stored = np.dtype(np.uint8) if are_bytes else dtype
            return isinstance(write, ArrayWriter) and self._fill(items, stored, write, offset)
        values = self._find(items)
        if are_bytes:
            values = values.view(dtype)
        if values.dtype != dtype:
            return False
        if isinstance(write, ArrayWriter):
            self._read(values, write.parts(offset, values.nbytes))
            return True
        step = _STEP_BYTES // dtype.itemsize
        for start in range(0, len(values), step):
            some = self._in_memory(values[start : start + step])
            write(offset + start * dtype.itemsize, some)
        return True

    def close(self) -> None:
        """Return when all that was written is there, and let go of what was got last."""
        self._values = None
        filling, self._filling = self._filling, []
        for future in filling:
            future.result()

    def _fill(
        self, items: slice, dtype: np.dtype[Any], write: ArrayWriter, offset: int
    ) -> bool:
        """Put the pixels of a record batch where they stay; False if that cannot be."""
        number = self._number_of(items)
        fill, first = self._fills[number], int(self.starts[number])
        whole = slice(first, first + int(self._num_items[number]))
        if fill is None or items != whole or fill.dtype != dtype:
            return False

        def run() -> None:
            fill.fill(write.view(offset, (items.stop - items.start,), dtype))

        if self._pool is None:
            run()
        else:
            self._filling.append(self._pool.submit(run))
        return True

    def _in_memory(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._read is None:
            return values
        there = np.empty_like(values)
        self._read(values, [there.view(np.uint8)])
        return there

    def _number_of(self, items: slice) -> int:
        return int(self.starts.searchsorted(items.start, "right")) - 1

    def _find(self, items: slice) -> npt.NDArray[Any]:
        number = self._number_of(items)
        start, stop = items.start - self.starts[number], items.stop - self.starts[number]
        if (
            number != self._number
            or self._values is None
            or not self._first <= start <= stop <= self._first + len(self._values)
        ):
            self._values = None  # so that two are never held
            self._first, self._values = self._load(number, items)
            self._number = number
        return self._values[start - self._first : stop - self._first]

    def _load(self, number: int, items: slice) -> tuple[int, npt.NDArray[Any]]:
        """Return some items of a record batch, and the number of the first of them in it."""
        future = self._ahead.pop(number, None)
        self._submit(number)
        if future is not None:
            return 0, future.result()
        first = int(self.starts[number])
        load_part, num_items = self._parts[number], int(self._num_items[number])
        if load_part is not None:
            start, stop = items.start - first, min(self._stop(items) - first, num_items)
            is_part = stop - start < _WHOLE_SHARE * num_items
            part = load_part(start, stop) if is_part else None
            if part is not None:
                return start, part
        needed = max(items.stop - first, int(self._needed[number]))
        return 0, self._loads[number](needed)

    def _stop(self, items: slice) -> int:
        """Return where the last slice stops that is to be loaded together with one."""
        starts, stops = (np.concatenate(edges) for edges in zip(*self._slices, strict=True))
        is_after = starts >= items.start
        starts, stops = starts[is_after], stops[is_after]
        order = starts.argsort()
        starts, stops = starts[order], np.maximum.accumulate(stops[order])
        gaps = (starts[1:] > stops[:-1] + _GAP_ITEMS).nonzero()[0]
        last = stops[gaps[0] if len(gaps) else -1 :][:1]
        return int(max(items.stop, *last.tolist()))

    def _submit(self, number: int) -> None:
        """Let those batches be loaded that come next after one, and let go of others."""
        if self._pool is None:
            return
        last = min(number + self._num_ahead, len(self._loads) - 1)
        self._ahead = {
            after: self._ahead.get(after)
            or self._pool.submit(self._loads[after], int(self._num_items[after]))
            for after in range(number + 1, last + 1)
            if self._parts[after] is None
        }


PieceRows: TypeAlias = tuple[pa.StructArray, ApartPixels | None]
"""Chunks or planes of images; lists of pixels in them may be of nothing, and say only which items
of those that lie apart are theirs."""
