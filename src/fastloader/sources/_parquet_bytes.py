"""Byte chunks of a Parquet row group: where each lies is settled before its page is read.

A chunk is as long as its shape and type say, so the lengths in a page tell nothing that is not
known. What is read must agree with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import integer_values, nulls_of_nothing, text_codes
from fastloader.sources._ome_arrow_table import PIXEL_TYPES
from fastloader.sources._page_memory import PageMemory
from fastloader.sources._parquet_levels import (
    PageError,
    find_lower_levels,
    read_packed_numbers,
)
from fastloader.sources._parquet_pages import ChunkPages, Page, PageContent, read_page
from fastloader.sources._pixels_apart import ApartPixels

__all__ = ["BytePages", "byte_sizes"]

Integers: TypeAlias = npt.NDArray[np.int64]

_LENGTH_BYTES = 4
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_WHOLE_SHARE = 0.7
"""Of a page: from so much on it takes less time to decompress all of it, at once."""
_MAX_SEEN = 16
"""Kinds of pages to know again."""
_SMALL_BYTES = 32 << 10
"""Values that are put together, to be written at once, which takes less than to write each."""


def byte_sizes(pieces: pa.StructArray, samples: int) -> Integers | None:
    """Return how many bytes each chunk has; None where that is not known, as of compressed ones.

    Args:
        pieces: Chunks without their bytes.
        samples: Values that each pixel has side by side.
    """
    if pieces.type.get_field_index("compression") >= 0:
        codes, names = text_codes(pieces.field("compression"))
        if any(name not in {"", "none"} for name in names):
            return None
    codes, names = text_codes(pieces.field("dtype"))
    known = [PIXEL_TYPES[name].itemsize if name in PIXEL_TYPES else 0 for name in names]
    sizes = np.array([*known, 0], np.int64)[codes] * samples
    most = np.iinfo(np.int32).max
    for name in ("shape_z", "shape_y", "shape_x"):
        values = integer_values(pieces.field(name))
        sizes *= np.clip(values, 0, most)
        sizes[sizes > most] = 0
    return sizes if (sizes > 0).all() else None


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Values that lie in a page one after the other, each with its length before it."""

    page: Page
    values_at: int
    """Where the first length stands in the page."""
    sizes: Integers
    """Of the values."""
    levels: tuple[int, int] | None
    """First and last of the levels of the group that the page has; None for a dictionary."""
    is_joined: bool
    """Whether the values are given without their lengths."""

    @property
    def num_bytes(self) -> int:
        """Bytes that are given in all."""
        return int(self.sizes.sum()) if self.is_joined else self.page.uncompressed_bytes

    def starts(self) -> Integers:
        """Return where each value starts in what is given."""
        if self.is_joined:
            return np.cumsum(self.sizes) - self.sizes
        return self.values_at + np.cumsum(self.sizes + _LENGTH_BYTES) - self.sizes


class BytePages:
    """The pages of a row group that hold bytes, which are read when their pixels are asked for."""

    def __init__(
        self,
        file: pa.NativeFile,
        pages: ChunkPages,
        page_edges: Integers,
        row_edges: Integers,
        piece_edges: Integers,
        sizes: Integers,
        max_levels: tuple[int, int],
    ) -> None:
        """Settle where all values lie.

        Args:
            file: The file, open; only looked at now, where pages refer to a dictionary.
            pages: Of the row group.
            page_edges: Position of the first level of each page, and last the number of levels.
            row_edges: The same for rows.
            piece_edges: First chunk of each row, and last their number.
            sizes: Bytes of each chunk.
            max_levels: Highest repetition and definition level.

        Raises:
            PageError: If pages have not what these say, or are of a kind that is not known here.
        """
        self._codec = pages.codec
        self._max_levels = max_levels
        counts = np.diff(piece_edges)
        self._rows = row_edges[:-1]
        self._missing = row_edges[:-1][counts == 0]
        self._most = len(row_edges) + len(sizes)
        self._seen: set[tuple[bytes, ...]] = set()
        within = np.arange(len(sizes)) - np.repeat(piece_edges[:-1], counts)
        levels = np.repeat(row_edges[:-1], counts) + within
        edges = np.searchsorted(levels, page_edges).tolist()
        self._stretches: list[_Stretch] = []
        starts = np.zeros(len(sizes), np.int64)
        references: list[tuple[slice, Integers]] = []
        at = 0
        for number, page in enumerate(pages.pages):
            of_page = slice(edges[number], edges[number + 1])
            span = (int(page_edges[number]), int(page_edges[number + 1]))
            if page.encoding == _PLAIN:
                stretch = self._add(page, sizes[of_page], span)
                starts[of_page] = at + stretch.starts()
                at += stretch.num_bytes
            elif page.encoding in {_PLAIN_DICTIONARY, _RLE_DICTIONARY}:
                content = self._read(file, page, span, PageMemory(), is_whole=True)
                references.append((
                    of_page,
                    _numbers(content, edges[number + 1] - edges[number]),
                ))
            else:
                raise PageError(f"bytes in the encoding {page.encoding}")
        if references:
            self._refer(pages.dictionary, references, sizes, starts, at)
        self._num_bytes = [stretch.num_bytes for stretch in self._stretches]
        nothing = nulls_of_nothing(sum(self._num_bytes))
        buffers = [None, pa.py_buffer(starts), pa.py_buffer(sizes)]
        self.lists = pa.Array.from_buffers(
            pa.large_list_view(nothing.type), len(sizes), buffers, children=[nothing]
        )
        """For each chunk a list of nothing, which says where it lies in `pixels`."""

    def pixels(self, file: pa.NativeFile, memory: PageMemory) -> ApartPixels:
        """Return the bytes of all chunks, none of which is read before it is asked for.

        What is asked for raises `PageError` if it is not as expected.

        Args:
            file: The file, open.
            memory: Where what is stored is put, before it is decompressed.
        """
        loads = [partial(self._load, file, memory, one) for one in self._stretches]
        return ApartPixels(self._num_bytes, loads)

    def _add(self, page: Page, sizes: Integers, levels: tuple[int, int] | None) -> _Stretch:
        """Take a page of values.

        Raises:
            PageError: If it has not room for them.
        """
        level_bytes = sum(page.bare_levels or ())
        used = int(sizes.sum()) + _LENGTH_BYTES * len(sizes)
        values_at = page.uncompressed_bytes - level_bytes - used
        if values_at < 0:
            raise PageError("chunks are larger than their page")
        is_joined = len(sizes) > 1 and bool(sizes.mean() < _SMALL_BYTES)
        stretch = _Stretch(page, values_at, sizes, levels, is_joined)
        self._stretches.append(stretch)
        return stretch

    def _refer(
        self,
        dictionary: Page | None,
        references: Sequence[tuple[slice, Integers]],
        sizes: Integers,
        starts: Integers,
        at: int,
    ) -> None:
        """Find the chunks that are in a dictionary.

        Raises:
            PageError: If there is none, or it has other values.
        """
        if dictionary is None:
            raise PageError("there is no dictionary")
        entries = np.full(dictionary.num_values, -1, np.int64)
        for of_page, numbers in references:
            if numbers.max(initial=-1) >= len(entries):
                raise PageError("a value is not in the dictionary")
            entries[numbers] = sizes[of_page]
        is_same = all(
            np.array_equal(entries[numbers], sizes[of_page]) for of_page, numbers in references
        )
        if not is_same or (entries < 0).any():
            raise PageError("the dictionary has other values than the chunks")
        first = self._add(dictionary, entries, None).starts()
        for of_page, numbers in references:
            starts[of_page] = at + first[numbers]

    def _read(
        self,
        file: pa.NativeFile,
        page: Page,
        levels: tuple[int, int] | None,
        memory: PageMemory,
        *,
        is_whole: bool,
    ) -> PageContent:
        """Read a page, whose rows must begin where the chunks say.

        Raises:
            PageError: If they do not, or it is damaged.
        """
        max_levels = self._max_levels if levels is not None else (0, 0)
        content = read_page(file, page, self._codec, max_levels, memory, is_whole=is_whole)
        if levels is not None:
            rows, missing = _within(self._rows, *levels), _within(self._missing, *levels)
            self._check_levels(content, page.num_values, rows, missing)
        return content

    def _check_levels(
        self, content: PageContent, num_values: int, rows: Integers, missing: Integers
    ) -> None:
        """Check that rows begin at some places of a page, and that some of them have nothing.

        Raises:
            PageError: If they do not.
        """
        levels = bytes(content.repetition), bytes(content.definition)
        kind = (*levels, rows.tobytes(), missing.tobytes(), num_values.to_bytes(4))
        if kind in self._seen:  # of images alike, pages are alike
            return
        most = self._most
        at, lower = find_lower_levels(levels[0], self._max_levels[0], num_values, most)
        without, _ = find_lower_levels(levels[1], self._max_levels[1], num_values, most)
        if lower.any() or not np.array_equal(at, rows) or not np.array_equal(without, missing):
            raise PageError("rows begin elsewhere than the chunks say")
        if len(self._seen) < _MAX_SEEN:
            self._seen.add(kind)

    def _load(
        self, file: pa.NativeFile, memory: PageMemory, stretch: _Stretch, num_bytes: int
    ) -> npt.NDArray[np.uint8]:
        """Return the first bytes that a stretch gives.

        Raises:
            PageError: If they are damaged, or not as expected.
        """
        sizes, page = stretch.sizes, stretch.page
        is_whole = num_bytes >= _WHOLE_SHARE * stretch.num_bytes
        ends = stretch.values_at + np.cumsum(sizes + _LENGTH_BYTES)
        given = np.cumsum(sizes) if stretch.is_joined else ends
        count = min(len(sizes), int(np.searchsorted(given, num_bytes)) + 1)
        starts, ends = ends[:count] - sizes[:count], ends[:count]
        try:
            content = self._read(file, page, stretch.levels, memory, is_whole=is_whole)
            if content.values_at != stretch.values_at:
                raise PageError("chunks lie elsewhere than their sizes say")
            values = np.frombuffer(content.body.get(0, int(ends[-1])), np.uint8)
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise PageError(str(error)) from error
        lengths = values[starts[:, None] + np.arange(-_LENGTH_BYTES, 0)].view("<u4")[:, 0]
        if not np.array_equal(lengths, sizes[:count]):
            raise PageError("chunks are of other lengths than their sizes say")
        if content.body.is_apart:
            content.blocks.give_back()
        if not stretch.is_joined:
            return values
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        return np.concatenate([values[start:end] for start, end in places])


def _numbers(content: PageContent, num_values: int) -> Integers:
    """Return which entries of the dictionary the values of a page are.

    Raises:
        PageError: If they are cut off.
    """
    if not num_values:
        return np.zeros(0, np.int64)
    encoded = content.body.all()[content.values_at :]
    if not len(encoded):
        raise PageError("values are cut off")
    return read_packed_numbers(encoded[1:], encoded[0], num_values)


def _within(positions: Integers, start: int, stop: int) -> Integers:
    low, high = np.searchsorted(positions, (start, stop))
    return positions[low:high] - start
