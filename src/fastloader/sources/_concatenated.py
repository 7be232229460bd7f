"""Several sources as one, row after row."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from fastloader.errors import SourceError
from fastloader.sources._description import ImageDescription
from fastloader.sources._ome_arrow_layout import listed
from fastloader.sources._one_at_a_time import one_at_a_time
from fastloader.sources._protocol import (
    ClosableSource,
    ColumnValues,
    ImageTable,
    WritePixels,
)

__all__ = ["ConcatenatedSource"]

Integers: TypeAlias = npt.NDArray[np.int64]

_MAX_OPEN = 64
"""Files kept open by a thread: far below the usual limit of 1024."""


class ConcatenatedSource:
    """The rows of several sources, one after the other.

    **Processes:** as the sources.
    """

    def __init__(self, sources: Sequence[ClosableSource]) -> None:
        """Check that they fit together.

        Args:
            sources: Of one kind, at least one.

        Raises:
            SourceError: If one has other columns than the first.
        """
        self._sources = list(sources)
        first = self._sources[0]
        for source in self._sources[1:]:
            if set(source.column_names) != set(first.column_names):
                raise SourceError(
                    f"{source.where}: expected the columns of {first.where}, which are "
                    f"{listed(first.column_names)}, but got {listed(source.column_names)}."
                )
            source.close()
        sizes = [source.num_rows for source in self._sources]
        self._starts = np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))])
        self._recent: OrderedDict[int, None] = OrderedDict()

    @property
    def where(self) -> str:
        """First file and its column, and how many files follow."""
        more = len(self._sources) - 1
        return self._sources[0].where + (f" and {more} more files" if more else "")

    @property
    def fingerprint(self) -> str:
        """Hash of the fingerprints of all sources."""
        text = " ".join(source.fingerprint for source in self._sources)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def num_rows(self) -> int:
        """Number of rows, with and without an image."""
        return int(self._starts[-1])

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns that hold no images."""
        return self._sources[0].column_names

    def read_table(self) -> ImageTable:
        """Return sizes and pixel types of all images, checked as far as they can be.

        Raises:
            SourceError: If a file cannot be read.
            ImageDataError: If sizes are absurd or pieces missing.
        """
        return self._table

    def read_channel_names(self) -> list[tuple[str | None, ...]]:
        """Return the names of the channels of each image; of none for a row without image."""
        return [
            names
            for number in range(len(self._sources))
            for names in self._use(number).read_channel_names()
        ]

    def iterate_descriptions(self) -> Iterator[ImageDescription]:
        """Yield what is known of each image beside its pixels, row after row."""
        for number in range(len(self._sources)):
            yield from self._use(number).iterate_descriptions()

    def read_column(self, name: str) -> ColumnValues:
        """Return the values of a column that holds no images; see `ImageSource.read_column`."""
        parts = [self._use(number).read_column(name) for number in range(len(self._sources))]
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts)
        return [
            value
            for part in parts
            for value in (part if isinstance(part, list) else part.tolist())
        ]

    def find_rows(self, condition: pc.Expression) -> Integers:
        """Return the numbers of the rows that meet a condition; see `ImageSource.find_rows`."""
        found = [
            self._starts[number] + self._use(number).find_rows(condition)
            for number in range(len(self._sources))
        ]
        return np.concatenate(found)

    def read_images(
        self,
        rows: Integers,
        offsets: Integers,
        write: WritePixels,
        *,
        channels: Sequence[int] | None = None,
        on_rows: Callable[[int], None] | None = None,
        num_threads: int = 1,
    ) -> None:
        """Write images to memory; see `ImageSource.read_images`.

        Threads are for several files where there are many of them, else for each one.
        """
        announce = one_at_a_time(on_rows)
        edges = np.searchsorted(rows, self._starts)
        wanted = np.flatnonzero(np.diff(edges)).tolist()
        num_beside = min(num_threads, len(wanted) // 2)

        def read(number: int) -> None:
            some = slice(edges[number], edges[number + 1])
            self._use(number).read_images(
                rows[some] - self._starts[number],
                offsets[some],
                write,
                channels=channels,
                on_rows=announce,
                num_threads=1 if num_beside > 1 else num_threads,
            )

        if num_beside <= 1:
            for number in wanted:
                read(number)
            return
        with ThreadPoolExecutor(num_beside, "fastloader-files") as pool:
            try:
                for _ in pool.map(read, wanted):
                    pass
            finally:
                pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Close the files; they are opened again when needed."""
        while self._recent:
            self._sources[self._recent.popitem()[0]].close()

    @cached_property
    def _table(self) -> ImageTable:
        """The tables of all sources as one."""
        tables = [self._use(number).read_table() for number in range(len(self._sources))]
        dtypes = tuple(dict.fromkeys(dtype for table in tables for dtype in table.dtypes))
        codes = [
            np.array([dtypes.index(dtype) for dtype in table.dtypes], np.uint8)[
                table.dtype_codes
            ]
            for table in tables
        ]
        return ImageTable(
            np.concatenate([table.shapes for table in tables]), dtypes, np.concatenate(codes)
        )

    def _use(self, number: int) -> Any:
        """Return a source, closing the file that was used longest ago if many are open."""
        self._recent.pop(number, None)
        self._recent[number] = None
        while len(self._recent) > _MAX_OPEN:
            self._sources[self._recent.popitem(last=False)[0]].close()
        return self._sources[number]
