"""Pixels of some rows of a Parquet row group, from the pages that hold them alone."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import list_bounds
from fastloader.sources._opened_here import OpenedHere
from fastloader.sources._page_bytes import is_quick
from fastloader.sources._page_memory import PageMemory
from fastloader.sources._parquet_bytes import BytePages, byte_sizes
from fastloader.sources._parquet_flat import FlatType
from fastloader.sources._parquet_handle import ParquetHandle
from fastloader.sources._parquet_levels import PageError
from fastloader.sources._parquet_pages import find_pages
from fastloader.sources._parquet_span import GroupPages, PageReader, edges_of, list_array
from fastloader.sources._pixels_apart import PieceRows

__all__ = ["PagedPixels"]

Integers: TypeAlias = npt.NDArray[np.int64]

_NUMBERS = {
    ("BOOLEAN", "bool"): FlatType(0),
    ("INT32", "uint8"): FlatType(1, 11),
    ("INT32", "uint16"): FlatType(1, 12),
    ("INT32", "uint32"): FlatType(1, 13),
    ("INT64", "uint64"): FlatType(2, 14),
    ("INT32", "int8"): FlatType(1, 15),
    ("INT32", "int16"): FlatType(1, 16),
    ("INT32", "int32"): FlatType(1, 17),
    ("INT64", "int64"): FlatType(2, 18),
    ("FLOAT", "float32"): FlatType(4),
    ("DOUBLE", "float64"): FlatType(5),
}
_MAX_KEPT_PLACES = 1 << 18
"""Of chunks or planes, rows and pages of row groups that stay in memory: some 50 bytes each."""
_MAX_PAGE_PIXEL_BYTES = 64 << 20
"""A page of few distinct numbers can be as many pixels as its row group: Arrow streams them."""
_LARGE_BYTES = 256 << 10
"""Of a value: Arrow copies each twice, and a page costs a tenth of a millisecond here."""
_MAX_BYTES_PER_NUMBER = 16
"""Of a page before it is decompressed, levels included, and twice as many as there can be."""


@dataclass(slots=True)
class _Here:
    """What a thread has open, and knows by now."""

    file: pa.NativeFile
    groups: OrderedDict[int, GroupPages | None] = field(default_factory=OrderedDict)
    """Latest used last; None if it cannot be read by page."""
    memory: PageMemory = field(default_factory=PageMemory)
    """For pages."""


class PagedPixels:
    """Reads chunks or planes by page: of numbers in lists, or of bytes.

    Where the rows of a group begin in it is found out once, from the headers of its pages and
    from the fields that say where pieces lie. What does not agree with them, or is of a kind
    that is not known here, is an error that says no more: Arrow's own reader is to read it.

    **Processes:** each thread has the file open for itself; a pickle holds plain values.
    """

    def __init__(
        self,
        file: ParquetHandle,
        name: str,
        leaf: int,
        place_leaves: Sequence[str],
        dtype: np.dtype[Any] | None,
        samples: int,
    ) -> None:
        """Take what to read.

        Args:
            file: A local file.
            name: ``"chunks"`` or ``"planes"``.
            leaf: Position of the leaf column of the pixels.
            place_leaves: Paths of the other leaf columns of the pieces.
            dtype: Of pixels in lists; None if they are bytes.
            samples: Values that each pixel has side by side.
        """
        self._file = file
        self._name = name
        self._leaf = leaf
        self._place_leaves = list(place_leaves)
        self._dtype = dtype
        self._samples = samples
        self._opened = OpenedHere(self._open)

    @property
    def is_in_lists(self) -> bool:
        """True for numbers in lists, False for bytes."""
        return self._dtype is not None

    def has_large_bytes(self, group: int) -> bool:
        """Return whether a row group has bytes in values so large that pages are worth their price.

        Args:
            group: Number of the row group.

        Raises:
            SourceError: If the footer makes no sense.
        """
        if self.is_in_lists:
            return False
        self._file.check_codec(group, self._leaf)
        column = self._file.open().metadata.row_group(group).column(self._leaf)
        num_bytes = column.total_uncompressed_size
        return (
            is_quick(column.compression.lower())
            and num_bytes >= _LARGE_BYTES * column.num_values
        )

    def close(self) -> None:
        """Let go of what this thread has open."""
        self._opened.close()

    def read(
        self, group: int, rows: Integers, row_levels: Integers, batch_rows: int
    ) -> Iterator[tuple[PieceRows, Integers]]:
        """Yield the image column with some of its rows, and their numbers in the group.

        Pixels that lie apart raise `PageError` when they are looked at and cannot be read.

        Args:
            group: Number of the row group.
            rows: Numbers of the rows in it, ascending, at least one; those between come too,
                where they lie in the same pages.
            row_levels: Numbers in the lists of each row of the group, 1 where there are none.
            batch_rows: Rows to hold at once, about.

        Raises:
            PageError: If it cannot be read in this way, from the row on after the last that was
                yielded.
        """
        try:
            here = self._opened.get()
            known = self._known_group(here, group, row_levels)
            if known.bytes_apart is not None:
                yield self._rows_apart(here, known, int(rows[0]), int(rows[-1]))
                return
            reader = PageReader(
                here.file, known, self._max_levels, here.memory, is_whole=self.is_in_lists
            )
            with closing(reader) as pages:
                for first, last in self._spans(known, rows, batch_rows):
                    column = self._read_span(pages, known, first, last)
                    yield (column, None), np.arange(first, last + 1)
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise PageError(str(error)) from error

    def _rows_apart(
        self, here: _Here, group: GroupPages, first: int, last: int
    ) -> tuple[PieceRows, Integers]:
        """Return some rows of the image column whose bytes are read when they are written."""
        assert group.bytes_apart is not None  # noqa: S101 - else there are none
        edges = group.piece_edges[first : last + 2]
        pieces = slice(int(edges[0]), int(edges[-1]))
        column = self._column_of(
            edges - edges[0], group.pieces[pieces], group.bytes_apart.lists[pieces]
        )
        return (column, group.bytes_apart.pixels(here.file, here.memory)), np.arange(
            first, last + 1
        )

    def _column_of(
        self, edges: Integers, pieces: pa.StructArray, pixels: pa.Array
    ) -> pa.StructArray:
        """Return an image column.

        Args:
            edges: First chunk or plane of each row, and last their number.
            pieces: Their fields but for the pixels.
            pixels: Of each.
        """
        fields = {name: pieces.field(name) for name in pieces.type.names}
        fields["pixel_bytes" if self._dtype is None else "pixels"] = pixels
        structs = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
        return pa.StructArray.from_arrays([list_array(edges, structs)], names=[self._name])

    @property
    def _max_levels(self) -> tuple[int, int]:
        column = self._file.open().schema.column(self._leaf)
        return column.max_repetition_level, column.max_definition_level

    def _known_group(self, here: _Here, number: int, row_levels: Integers) -> GroupPages:
        """Return what is known of a row group, found out if need be.

        Raises:
            PageError: If it cannot be read by page.
        """
        if number in here.groups:
            here.groups.move_to_end(number)
        else:
            try:
                here.groups[number] = self._find_group(here.file, number, row_levels)
            except (PageError, pa.ArrowException, OSError):
                here.groups[number] = None
            kept = sum(one.num_kept for one in here.groups.values() if one is not None)
            while kept > _MAX_KEPT_PLACES and len(here.groups) > 1:
                _, dropped = here.groups.popitem(last=False)
                kept -= 0 if dropped is None else dropped.num_kept
        known = here.groups[number]
        if known is None:
            raise PageError("this row group cannot be read by page")
        return known

    def _find_group(self, file: pa.NativeFile, number: int, row_levels: Integers) -> GroupPages:
        """Find out where the rows of a group begin in its pages.

        Raises:
            PageError: If it cannot be told.
        """
        opened = self._file.open()
        places = opened.read_row_group(number, columns=self._place_leaves, use_threads=False)
        image = places.column(0)
        if image.num_chunks != 1 or len(image) != len(row_levels):
            raise PageError("rows are missing")
        start, stop, pieces = list_bounds(image.chunk(0).field(self._name))
        counts = stop - start
        piece_edges = edges_of(counts)
        if (
            counts.sum() != len(pieces)
            or pieces.null_count
            or not pa.types.is_struct(pieces.type)
        ):
            raise PageError("a chunk or plane is null")
        if self._dtype is None:
            row_levels = np.maximum(counts, 1)
        row_edges = edges_of(row_levels)
        self._file.check_codec(number, self._leaf)
        column = opened.metadata.row_group(number).column(self._leaf)
        if row_edges[-1] != column.num_values:
            raise PageError("there are other pixels than the sizes say")
        pages = find_pages(file, column)
        item_size = 0 if self._dtype is None else self._dtype.itemsize
        for page in pages.pages:
            if self._dtype is not None and (
                page.num_values * item_size > _MAX_PAGE_PIXEL_BYTES
                or page.uncompressed_bytes > _MAX_BYTES_PER_NUMBER * (page.num_values + 64)
            ):
                raise PageError("a page is too large")
        page_edges = edges_of(np.array([page.num_values for page in pages.pages], np.int64))
        apart = None
        if self._dtype is None and (sizes := byte_sizes(pieces, self._samples)) is not None:
            apart = BytePages(
                file, pages, page_edges, row_edges, piece_edges, sizes, self._max_levels
            )
        return GroupPages(pages, page_edges, row_edges, piece_edges, pieces, apart)

    def _spans(
        self, group: GroupPages, rows: Integers, batch_rows: int
    ) -> Iterator[tuple[int, int]]:
        """Yield first and last of rows to read together: those that share pages."""
        first_pages = np.searchsorted(group.page_edges, group.row_edges[rows], "right") - 1
        last_pages = np.searchsorted(group.page_edges, group.row_edges[rows + 1], "left") - 1
        begin = 0
        for at in range(1, len(rows)):
            shares_page = first_pages[at] <= last_pages[at - 1]
            follows = shares_page or rows[at] == rows[at - 1] + 1
            is_full = rows[at] - rows[begin] >= batch_rows
            # Numbers of a page are decoded all at once, bytes are where they are.
            if not follows or (is_full and not (shares_page and self.is_in_lists)):
                yield int(rows[begin]), int(rows[at - 1])
                begin = at
        yield int(rows[begin]), int(rows[-1])

    def _read_span(
        self, pages: PageReader, group: GroupPages, first: int, last: int
    ) -> pa.StructArray:
        """Return some rows of the image column.

        Raises:
            PageError: If they are not as expected.
        """
        rows = slice(first, last + 1)
        levels = pages.find(group.row_edges[first], group.row_edges[last + 1])
        counts = np.diff(group.piece_edges[first : last + 2])
        starts = group.row_edges[rows]
        if not np.array_equal(levels.rows, starts) or not np.array_equal(
            levels.missing, starts[counts == 0]
        ):
            raise PageError("rows begin elsewhere than the sizes say")
        edges = group.piece_edges[first : last + 2] - group.piece_edges[first]
        if self._dtype is None:
            pixels = pages.read_bytes(levels, int(edges[-1]))
        else:
            is_piece = np.isin(levels.lists, levels.missing, assume_unique=True, invert=True)
            lists = levels.lists[is_piece]
            found = np.searchsorted(lists, group.row_edges[first : last + 2])
            # Unlike the numbers of chunks, sizes of images are not of the file's own structure.
            if not np.array_equal(found, edges) or not pages.ends_with_row(levels):
                raise PageError("chunks or planes begin elsewhere than expected")
            pixels = pages.read_numbers(levels, lists, self._flat_type(), self._dtype)
        pieces = group.pieces[group.piece_edges[first] : group.piece_edges[last + 1]]
        return self._column_of(edges, pieces, pixels)

    def _flat_type(self) -> FlatType:
        """Return the type of the numbers.

        Raises:
            PageError: If they are stored in a way that is not known here.
        """
        physical = self._file.open().schema.column(self._leaf).physical_type
        kind = _NUMBERS.get((physical, "" if self._dtype is None else self._dtype.name))
        if kind is None:
            raise PageError(f"numbers stored as {physical}")
        return kind

    def _open(self) -> _Here:
        return _Here(self._file.open_raw())
