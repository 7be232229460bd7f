"""Images in a column of any table format that gives Arrow record batches."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fastloader.errors import SourceError
from fastloader.sources._batch_rows import rows_per_read
from fastloader.sources._column_values import channel_names, column_values
from fastloader.sources._conditions import columns_of, matching_rows
from fastloader.sources._description import ImageDescription, described_fields, described_images
from fastloader.sources._interleaved import RGB, InterleavedSource, is_interleaved
from fastloader.sources._mapped_pages import let_go_of_pages
from fastloader.sources._ome_arrow_layout import (
    UNSIZED,
    ColumnLayout,
    choose_image_column,
    other_columns,
    refuse_column,
)
from fastloader.sources._ome_arrow_pixels import PixelWriter
from fastloader.sources._ome_arrow_table import ImageTableReader, find_outliers
from fastloader.sources._piece_pass import PiecePass, is_among
from fastloader.sources._pixels_apart import PieceRows
from fastloader.sources._protocol import ColumnValues, ImageSource, ImageTable, WritePixels
from fastloader.sources._standing_file import StandingFile
from fastloader.sources._table import (
    ArrowTable,
    HasMappedFile,
    HasPixelsApart,
    HasStatistics,
    MayBeAtUrl,
)
from fastloader.sources._write_behind import WriteBehind

__all__ = ["TableSource", "open_table"]

Integers: TypeAlias = npt.NDArray[np.int64]
Batch = TypeVar("Batch")

_META_ROWS = 4096
_PIECE_ROWS = 16
_WRITTEN_BYTES = 16 << 20
"""Pixels written by one call, which takes 0.3 ms beside them: copying 2 MB takes as long."""
_WORTH_A_THREAD_BYTES = 4 << 20
"""Of pixels: fewer are written before a thread has started."""
_STREAM_SHARE = 0.5
"""Rows wanted, as a share of all, from which on reading the table as a stream is cheaper."""


class TableSource:
    """The images of one column of a table.

    Sizes and pixel types are read from ``pixels_meta`` alone where that is enough, since these
    formats cannot read a part of a chunk: chunks and planes are checked when their pixels are.

    **Processes:** as the table; see `ArrowTable`.
    """

    def __init__(
        self,
        table: ArrowTable,
        image_column: str | None = None,
        *,
        is_interleaved: bool = False,
    ) -> None:
        """Find the column.

        Args:
            table: Where the images are.
            image_column: Name of the column; may be left out if there is only one of images.
            is_interleaved: Whether each pixel is red, green and blue side by side, although the
                metadata says one channel; images then seem three times as wide.

        Raises:
            SourceError: If the table cannot be read, or the column is missing, no image or not
                the only one.
        """
        self._table = table
        self._file = StandingFile(table.file_path)
        self._apart = table if isinstance(table, HasPixelsApart) else None
        self._mapped = table if isinstance(table, HasMappedFile) else None
        self._at_url = table if isinstance(table, MayBeAtUrl) else None
        schema = table.schema
        self._column = choose_image_column(schema, image_column, table.path)
        self._column_names = other_columns(schema, self._column)
        self._layout = ColumnLayout.of(
            schema.field(self._column).type, self.where, is_interleaved=is_interleaved
        )
        layout = self._layout
        is_there = {"chunks": layout.has_chunks, "planes": layout.plane_dtype is not None}
        self._pieces = tuple(name for name in is_there if is_there[name])

    @property
    def where(self) -> str:
        """File and column, as error messages name them."""
        return f"{self._table.path}, column {self._column!r}"

    @property
    def fingerprint(self) -> str:
        """Text that changes when the content does, and is another one for each column of images."""
        return f"{self._table.fingerprint} {self._column!r}"

    @property
    def num_rows(self) -> int:
        """Number of rows, with and without an image."""
        return self._table.num_rows

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns that hold no images."""
        return self._column_names

    def read_table(self) -> ImageTable:
        """Return sizes and pixel types of all images, checked as far as they can be.

        Raises:
            SourceError: If the table cannot be read.
            ImageDataError: If sizes are absurd.
        """
        return self._images

    def read_channel_names(self) -> list[tuple[str | None, ...]]:
        """Return the names of the channels of each image; of none for a row without image.

        Raises:
            SourceError: If the table cannot be read.
        """
        names: list[tuple[str | None, ...]] = []
        for _, column in self._batches(("pixels_meta",), None, _META_ROWS):
            names += channel_names(column)
        return names

    def iterate_descriptions(self) -> Iterator[ImageDescription]:
        """Yield what is known of each image beside its pixels, row after row.

        Raises:
            SourceError: If the table cannot be read.
        """
        fields = described_fields(self._table.schema.field(self._column).type)
        for _, column in self._batches(fields, None, _META_ROWS):
            yield from described_images(column, self.where)

    def read_column(self, name: str) -> ColumnValues:
        """Return the values of a column that holds no images.

        Raises:
            SourceError: If there is no such column or it cannot be read.
        """
        if name not in self._column_names:
            refuse_column(name, self._column_names, self._table.schema, self._table.path)
        with self._table.reading():
            column = self._table.read_columns([name]).column(0)
            return column_values(column, f"{self._table.path}, column {name!r}")

    def find_rows(self, condition: pc.Expression) -> Integers:
        """Return the numbers of the rows that meet a condition, ascending.

        Args:
            condition: Over columns that hold no images; where it is null, a row is left out.

        Raises:
            SettingsError: If the condition does not fit the columns.
            SourceError: If the table cannot be read.
        """
        names = columns_of(condition, self._column_names) or list(self._column_names[:1])
        with self._table.reading():
            columns = self._table.read_columns(names) if names else pa.table({})
        return matching_rows(columns, condition, self._table.path)

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
        """Write images to memory, each in C order of T, C, Z, Y, X and its own dtype.

        Args:
            rows: Row numbers, ascending, each once, none without an image.
            offsets: Position of each image's first byte, shape ``(len(rows),)``.
            write: Called for all parts of all images, from one thread at a time.
            channels: Channels to keep, in this order; all when left out.
            on_rows: Called with the number of images written since the last call.
            num_threads: With more than one, the next batch is read while one is written, and
                what can be decompressed alone is by so many at once.

        Raises:
            SourceError: If the table cannot be read.
            ImageDataError: If the pixels of an image make no sense.
        """
        if not len(rows):
            return
        table = self._images
        if num_threads > 1 and self._num_bytes(rows) < _WORTH_A_THREAD_BYTES:
            num_threads = 1
        writer = PixelWriter(
            self._layout, table, rows, offsets, write, channels=channels, where=self.where
        )
        left = rows
        with ExitStack() as stack:
            is_threaded = num_threads > 1
            pool = stack.enter_context(ThreadPoolExecutor(num_threads)) if is_threaded else None
            for name in self._pieces:
                is_last = name == self._pieces[-1]
                one = PiecePass(writer, name, left, on_rows, is_last=is_last)
                guarded = self._file.guard(one.write)
                with WriteBehind(guarded, in_thread=is_threaded) as behind:
                    for row_numbers, batch in self._read_pieces(
                        name, left, 1 if pool is None else 2, is_load=on_rows is not None
                    ):
                        if pool is not None and batch[1] is not None:
                            batch[1].load_ahead(pool, num_threads)
                        behind(batch, row_numbers)
                        del batch  # here and below: not to be held while the next is decoded
                if self._at_url is not None:
                    self._at_url.check_at_url()
                left = one.without_pieces()
                if not len(left):
                    return

    def _read_pieces(
        self, name: str, rows: Integers, num_held: int, *, is_load: bool
    ) -> Iterator[tuple[Integers, PieceRows]]:
        """Yield row numbers, and the chunks or planes of these rows.

        Args:
            name: ``"chunks"`` or ``"planes"``.
            rows: Row numbers, ascending; others may come too.
            num_held: Batches to be held at once.
            is_load: Whether each row is read once.
        """
        if self._apart is not None:
            wanted = self._wanted(rows)
            batches = self._apart.read_pieces(self._column, name, wanted, is_load=is_load)
            yield from self._complete(batches, wanted)
            return
        sum_bytes = self._num_bytes(rows)
        mean_bytes = sum_bytes / len(rows)
        batch_rows = rows_per_read(mean_bytes, sum_bytes, num_held)
        written_rows = max(1, int(_WRITTEN_BYTES // mean_bytes))
        # Of a few rows: to find their mapping takes longer than they do.
        mapped = self._mapped if sum_bytes > _WRITTEN_BYTES else None
        for row_numbers, column in self._batches((name,), rows, batch_rows):
            views = [] if mapped is None else mapped.find_views(column)
            # Some formats give all their rows at once: what is made of them should not be.
            for start in range(0, len(row_numbers), written_rows):
                some = slice(start, start + written_rows)
                if is_among(row_numbers[some], rows).any():
                    yield row_numbers[some], (column[some], None)
                for addresses, view in views:
                    let_go_of_pages(addresses, view)
            del column, views

    def _num_bytes(self, rows: Integers) -> int:
        table = self._images
        return int((table.shapes[rows].prod(axis=1) * table.item_sizes_of(rows)).sum())

    def close(self) -> None:
        """Let go of the file; it is opened again when needed."""
        self._table.close()

    @cached_property
    def _images(self) -> ImageTable:
        """The table of images.

        Raises:
            SourceError: If rows are missing.
        """
        reader = ImageTableReader(self._layout, self.where)
        batches = self._batches(("pixels_meta",), None, _META_ROWS)
        if not (
            self._may_trust_meta() and all(reader.add_stated(column) for _, column in batches)
        ):
            reader = ImageTableReader(self._layout, self.where)
            fields = ("pixels_meta", *self._pieces)
            at_once = _PIECE_ROWS if self._apart is None else _META_ROWS
            for _, column in self._batches(fields, None, at_once, without=UNSIZED):
                reader.add(column)
        table = reader.finish()
        if table.num_rows != self.num_rows:
            raise SourceError(
                f"{self.where}: expected {self.num_rows} rows, but got {table.num_rows}."
            )
        self._check_outliers(table)
        return table

    def _check_outliers(self, table: ImageTable) -> None:
        """Look at the pieces of images that are far larger than others, before memory is taken.

        Raises:
            ImageDataError: If a size is damaged.
        """
        outliers = find_outliers(table)
        if not len(outliers):
            return
        nowhere = PixelWriter(
            self._layout,
            table,
            outliers,
            np.zeros(len(outliers), np.int64),
            lambda offset, array: None,  # noqa: ARG005
            channels=None,
            where=self.where,
        )
        for row_numbers, column in self._batches(self._pieces, outliers, 1):
            nowhere.write(column, row_numbers)

    def _may_trust_meta(self) -> bool:
        """Return whether pixel types are known without reading each image's pieces."""
        layout = self._layout
        if not layout.has_byte_chunks:
            kinds = {layout.chunk_dtype, layout.plane_dtype} - {None}
            return len(kinds) == 1
        if self._apart is not None or not layout.has_pixel_type or not self.num_rows:
            return False
        if isinstance(self._table, HasStatistics):
            of_types = ("chunks", "dtype"), ("pixels_meta", "type")
            with self._table.reading():
                if self._table.only_text(self._column, of_types) is not None:
                    return True
        probes = np.unique(np.linspace(0, self.num_rows - 1, 3).astype(np.int64))
        probe = ImageTableReader(layout, self.where)
        stated = ImageTableReader(layout, self.where)
        fields = ("pixels_meta", *self._pieces)
        for row_numbers, column in self._batches(fields, probes, len(probes), without=UNSIZED):
            for at in np.flatnonzero(np.isin(row_numbers, probes)).tolist():
                probe.add(column[at : at + 1])
                if not stated.add_stated(column[at : at + 1]):
                    return False
        return probe.dtypes == stated.dtypes

    def _batches(
        self,
        fields: Sequence[str],
        rows: Integers | None,
        batch_rows: int,
        without: Sequence[str] = (),
    ) -> Iterator[tuple[Integers, pa.StructArray]]:
        """Yield row numbers and the image column with some of its fields.

        Raises:
            SourceError: If rows are missing.
        """
        wanted = self._wanted(rows)
        batches = self._table.read_fields(self._column, fields, wanted, batch_rows, without)
        for row_numbers, batch in self._complete(batches, wanted):
            names = batch.schema.names
            yield row_numbers, pa.StructArray.from_arrays(batch.columns, names=names)
            del batch

    def _wanted(self, rows: Integers | None) -> Integers | None:
        """Return the rows to ask for; None for a stream of all."""
        is_stream = rows is None or len(rows) > _STREAM_SHARE * self.num_rows
        return None if is_stream else rows

    def _complete(
        self, batches: Iterator[tuple[Integers, Batch]], wanted: Integers | None
    ) -> Iterator[tuple[Integers, Batch]]:
        """Yield batches that have any rows, and check that none is missing.

        Raises:
            SourceError: If rows are missing.
        """
        expected = self.num_rows if wanted is None else len(wanted)
        found = 0
        with self._table.reading():
            for row_numbers, batch in batches:
                found += len(row_numbers)
                if len(row_numbers):
                    yield row_numbers, batch
                del batch
        if found < expected:
            raise SourceError(f"{self.where}: expected {expected} rows, but got {found}.")


def open_table(table: ArrowTable, image_column: str | None, rgb: RGB) -> ImageSource:
    """Return the images of a table.

    Args:
        table: Where they are.
        image_column: Name of the column; may be left out if there is only one of images.
        rgb: ``"interleaved"`` if each pixel is red, green and blue side by side.
    """
    interleaved = is_interleaved(rgb)
    source = TableSource(table, image_column, is_interleaved=interleaved)
    return InterleavedSource(source) if interleaved else source
