"""Levels and values of some rows, from the pages of a Parquet row group that hold them."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import numpy_dtype
from fastloader.sources._page_memory import PageMemory
from fastloader.sources._parquet_bytes import BytePages
from fastloader.sources._parquet_flat import EncodedValues, FlatType, decode_values
from fastloader.sources._parquet_levels import (
    PageError,
    find_lower_levels,
    read_packed_numbers,
)
from fastloader.sources._parquet_pages import ChunkPages, Page, PageContent, read_page
from fastloader.sources._parquet_values import ByteValues, byte_values, plain_values

__all__ = ["GroupPages", "Levels", "PageReader", "edges_of", "list_array"]

Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupPages:
    """What is known of a row group."""

    pages: ChunkPages
    page_edges: Integers
    """Position of the first level of each page, and last the number of levels."""
    row_edges: Integers
    """The same for rows."""
    piece_edges: Integers
    """Number of the first chunk or plane of each row, and last how many there are."""
    pieces: pa.StructArray
    """Their fields but for the pixels."""
    bytes_apart: BytePages | None = None
    """Where bytes are, if their lengths are known before they are read."""
    begins_row: dict[int, bool] = field(default_factory=dict)
    """Whether a page begins with a row, by its number, of those that were looked at."""

    @property
    def num_kept(self) -> int:
        """Places that are kept: of pages, rows and pieces."""
        return len(self.pages.pages) + len(self.row_edges) + len(self.pieces)


@dataclass(frozen=True, slots=True)
class Levels:
    """Where things are among the levels of some rows; positions count from the group's first."""

    stop: int
    """After the last of the rows."""
    rows: Integers
    """First of each row."""
    lists: Integers
    """First of each chunk or plane."""
    missing: Integers
    """Those that stand for a row without any."""
    pages: range
    """Numbers of the pages that have them."""
    first: int
    """First of all in these pages."""
    missing_before: int
    """Levels without a value in these pages before the rows."""


class PageReader:
    """Pages of a group: reads what is asked for in ascending order, and keeps the last one.

    Args:
        file: The file, open.
        group: What is known of the row group.
        max_levels: Highest repetition and definition level.
        memory: Where pages are put.
        is_whole: Whether most values of the pages will be looked at.
    """

    def __init__(
        self,
        file: pa.NativeFile,
        group: GroupPages,
        max_levels: tuple[int, int],
        memory: PageMemory,
        *,
        is_whole: bool,
    ) -> None:
        self._is_whole = is_whole
        self._file = file
        self._group = group
        self._max_levels = max_levels
        self._memory = memory
        self._referred_to: PageContent | None = None
        self._contents: dict[int, PageContent] = {}
        self._bytes: dict[int, ByteValues] = {}
        self._missing: dict[int, Integers] = {}
        self._dictionary: EncodedValues | None = None
        self._dictionary_bytes: ByteValues | None = None

    def find(self, start: int, stop: int) -> Levels:
        """Read the pages of some levels, and say where rows and lists begin in them.

        Raises:
            PageError: If they make no sense.
        """
        edges = self._group.page_edges
        first = int(np.searchsorted(edges, start, "right")) - 1
        last = int(np.searchsorted(edges, stop, "left")) - 1
        for old in [number for number in self._contents if number < first]:
            self._contents.pop(old).blocks.give_back()
            self._bytes.pop(old, None)
            self._missing.pop(old, None)
        max_repetition, max_definition = self._max_levels
        most = len(self._group.row_edges) + len(self._group.pieces)
        rows, lists, missing = [], [], []
        for number in range(first, last + 1):
            page = self._group.pages.pages[number]
            content = self._content(number, page)
            at, levels = find_lower_levels(
                content.repetition, max_repetition, page.num_values, most
            )
            rows.append(edges[number] + at[levels == 0])
            lists.append(edges[number] + at)
            nothing, _ = find_lower_levels(
                content.definition, max_definition, page.num_values, most
            )
            self._missing[number] = edges[number] + nothing
            missing.append(self._missing[number])
        all_missing = np.concatenate(missing)
        return Levels(
            stop,
            _within(np.concatenate(rows), start, stop),
            _within(np.concatenate(lists), start, stop),
            _within(all_missing, start, stop),
            range(first, last + 1),
            int(edges[first]),
            int((all_missing < start).sum()),
        )

    def ends_with_row(self, levels: Levels) -> bool:
        """Tell whether a row begins after these levels, where that is the first of a page.

        The pages that were read tell it for any other place. A page of version 1 may begin
        within a row.

        Args:
            levels: Where the rows are.

        Raises:
            PageError: If the next page makes no sense.
        """
        edges, known = self._group.page_edges, self._group.begins_row
        number = levels.pages.stop
        if levels.stop != edges[number] or levels.stop == edges[-1]:
            return True
        while edges[number + 1] == levels.stop:  # without any values
            number += 1
        if number not in known:
            page = self._group.pages.pages[number]
            if page.bare_levels is None:
                encoded = self._content(number, page).repetition
            else:
                encoded = memoryview(self._file.read_at(page.bare_levels[0], page.at))
            width = self._max_levels[0].bit_length()
            known[number] = bool(read_packed_numbers(encoded, width, 1)[0] == 0)
        return known[number]

    def read_numbers(
        self, levels: Levels, lists: Integers, kind: FlatType, dtype: np.dtype[Any]
    ) -> pa.Array:
        """Return lists of numbers.

        Args:
            levels: Where they are.
            lists: Position of the first number of each.
            kind: Their type in the file.
            dtype: Their type.

        Raises:
            PageError: If they are of another type.
        """
        encoded = []
        for number in levels.pages:
            page = self._group.pages.pages[number]
            num_values = page.num_values - len(self._missing[number])
            if num_values:
                content = self._contents[number]
                values = content.body.all()[content.values_at :]
                encoded.append(EncodedValues(page.encoding, num_values, values))
        positions = np.append(lists, levels.stop)
        missing = np.searchsorted(levels.missing, positions) + levels.missing_before
        offsets = positions - levels.first - missing
        if not encoded:
            return list_array(np.zeros(1, np.int64), pa.nulls(0, pa.from_numpy_dtype(dtype)))
        numbers = decode_values(kind, self._numbers_referred_to(), encoded)
        if numbers.num_chunks != 1 or numpy_dtype(numbers.type) != dtype or numbers.null_count:
            raise PageError(f"numbers of the type {numbers.type}")
        return list_array(offsets, numbers.chunk(0))

    def read_bytes(self, levels: Levels, num_values: int) -> pa.Array:
        """Return values of bytes.

        Raises:
            PageError: If there are not as many.
        """
        start = int(levels.rows[0]) - levels.first - levels.missing_before
        stop = start + num_values
        parts: list[memoryview] = []
        for number in levels.pages:
            page, content = self._group.pages.pages[number], self._contents[number]
            count = page.num_values - len(self._missing[number])
            if number not in self._bytes:
                self._bytes[number] = byte_values(
                    content.body,
                    content.values_at,
                    count,
                    page.encoding,
                    self._bytes_referred_to,
                )
            parts += self._bytes[number].get(max(0, start), max(0, min(count, stop)))
            start, stop = start - count, stop - count
        if len(parts) != num_values:
            raise PageError("values are missing")
        offsets = edges_of(np.array([len(part) for part in parts], np.int64))
        content = pa.allocate_buffer(int(offsets[-1]))
        joined = np.frombuffer(content, np.uint8)
        for part, at in zip(parts, offsets.tolist(), strict=False):
            joined[at : at + len(part)] = np.frombuffer(part, np.uint8)
        buffers = [None, pa.py_buffer(offsets), content]
        return pa.Array.from_buffers(pa.large_binary(), num_values, buffers)

    def _content(self, number: int, page: Page) -> PageContent:
        if number not in self._contents:
            self._contents[number] = self._read(page, self._max_levels)
        return self._contents[number]

    def close(self) -> None:
        """Give the memory of all pages back: nothing that was returned refers to it."""
        for content in (*self._contents.values(), self._referred_to):
            if content is not None:
                content.blocks.give_back()

    def _read(self, page: Page, max_levels: tuple[int, int]) -> PageContent:
        codec, is_whole = self._group.pages.codec, self._is_whole
        return read_page(self._file, page, codec, max_levels, self._memory, is_whole=is_whole)

    def _numbers_referred_to(self) -> EncodedValues | None:
        page = self._group.pages.dictionary
        if page is not None and self._dictionary is None:
            content = self._referred_to = self._read(page, (0, 0))
            self._dictionary = EncodedValues(page.encoding, page.num_values, content.body.all())
        return self._dictionary

    def _bytes_referred_to(self) -> ByteValues:
        """Return the entries of a dictionary of bytes.

        Raises:
            PageError: If there is none.
        """
        page = self._group.pages.dictionary
        if page is None:
            raise PageError("there is no dictionary")
        if self._dictionary_bytes is None:
            content = self._referred_to = self._read(page, (0, 0))
            self._dictionary_bytes = plain_values(content.body, 0, page.num_values)
        return self._dictionary_bytes


def _within(positions: Integers, start: int, stop: int) -> Integers:
    low, high = np.searchsorted(positions, (start, stop))
    return positions[low:high]


def edges_of(counts: Integers) -> Integers:
    """Return where each of some things begins, and last where they end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def list_array(offsets: Integers, values: pa.Array) -> pa.Array:
    """Return lists.

    Args:
        offsets: First value of each, and last where they end.
        values: Of all.
    """
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64))]
    kind = pa.large_list(values.type)
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[values])
