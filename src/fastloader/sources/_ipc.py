"""Tables of Arrow IPC files, also called Feather: mapped into memory where they lie on disk."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import has_structs
from fastloader.sources._interleaved import RGB
from fastloader.sources._ipc_apart import IpcApart
from fastloader.sources._ipc_pixels import ApartBatch, PixelLeaf, join_batches
from fastloader.sources._joined_lists import join_fields
from fastloader.sources._location import PathLike, StorageOptions
from fastloader.sources._ome_arrow_layout import PIXELS
from fastloader.sources._pixels_apart import ApartPixels, PieceRows, ReadPixels
from fastloader.sources._protocol import ImageSource
from fastloader.sources._table import NumberedBatch
from fastloader.sources._table_source import open_table

__all__ = ["IpcTable", "open_ipc"]

Integers: TypeAlias = npt.NDArray[np.int64]

_JOINED_BYTES = 48 << 20
"""Pixels whose chunks or planes are checked at once."""
_JOINED_READ_BYTES = 128 << 20
"""The same of pixels that are read where they stay: none is held, and no thread waits for them."""
_VIEWED_ROWS = 4096
"""Of a mapped file, whose record batches are found at once."""


class IpcTable(IpcApart):
    """The rows of an Arrow IPC file."""

    @property
    def file_path(self) -> str:
        """Path or URL of the file alone."""
        return self.path

    @cached_property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def check_at_url(self) -> None:
        """Check that a file at a URL is still the one that was looked at first.

        Raises:
            SourceError: If it is another one, or not there.
        """
        self._location.check_at_url()

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole columns.

        Args:
            names: Of columns, at least one.
        """
        reader = self.reader(names)
        table = reader.read_all().select(list(names))
        table.validate(full=True)
        return table

    def read_fields(
        self,
        column: str,
        fields: Sequence[str],
        rows: Integers | None,
        batch_rows: int,
        without: Sequence[str] = (),
    ) -> Iterator[NumberedBatch]:
        """Yield some fields of a struct column, as columns of record batches.

        Args:
            column: Name of the column.
            fields: Of the struct.
            rows: Row numbers, ascending; the record batches that have them come whole.
            batch_rows: Rows to join to one batch where no pixels come, of small record batches.
            without: Fields of the structs in lists to leave out.

        Raises:
            SourceError: If a record batch has fewer rows than the file says.
        """
        is_kept = self.find_buffers(column, fields, without)
        struct = self.schema.field(column).type
        is_small = not any(
            has_structs(struct.field(field).type) and not set(PIXELS) <= set(without)
            for field in fields
        )
        at_once = batch_rows if is_small else 1
        for numbers in self._groups(self.find_batches(rows), at_once):
            columns = self.read_batches(numbers, column, is_kept)
            parts = [join_fields(columns[field], without) for field in fields]
            yield self.rows_of(numbers), pa.RecordBatch.from_arrays(parts, list(fields))

    def read_pieces(
        self, column: str, name: str, rows: Integers | None, *, is_load: bool
    ) -> Iterator[tuple[Integers, PieceRows]]:
        """Yield row numbers, and the chunks or planes of these rows, their pixels apart.

        To check a record batch takes a tenth of a millisecond in one that is joined of others,
        half alone, and one that is decompressed need not wait for others.

        Args:
            column: Name of the column.
            name: ``"chunks"`` or ``"planes"``.
            rows: Row numbers, ascending; the record batches that have them come whole.
            is_load: Whether each row is read once.

        Raises:
            SourceError: If a record batch has fewer rows than the file says.
        """
        leaf = self.find_leaf(column, name)
        # Of all rows, each is read once; of some, others may be looked at next.
        read = self.reading_apart() if rows is None else None
        joined_bytes = _JOINED_BYTES if read is None else _JOINED_READ_BYTES
        if self._is_mapped and not is_load:
            joined_bytes = 0  # what is found out about each is kept
        held: list[tuple[int, ApartBatch]] = []
        held_bytes = 0
        for number, apart in self._read_apart(column, name, leaf, rows):
            if held and (apart is None or held_bytes + apart.num_bytes > joined_bytes):
                yield self._joined(held, read)
                held, held_bytes = [], 0
            if apart is not None:
                held_bytes += apart.num_bytes
                held.append((number, apart))
                continue
            is_kept = self.find_buffers(column, (name,), ())
            lists = join_fields(self.read_batches([number], column, is_kept)[name], ())
            yield self.rows_of([number]), (pa.StructArray.from_arrays([lists], [name]), None)
        if held:
            yield self._joined(held, read)

    def _read_apart(
        self, column: str, name: str, leaf: PixelLeaf | None, rows: Integers | None
    ) -> Iterator[tuple[int, ApartBatch | None]]:
        """Yield record batches by number, with their chunks or planes if pixels are apart."""
        numbers = self.find_batches(rows)
        if leaf is None:
            yield from ((number, None) for number in numbers)
        elif not self._is_mapped:
            is_kept = self.find_buffers(column, (name,), ())
            asked = None if rows is None else numbers
            for number in numbers:
                yield (
                    number,
                    self.read_compressed(number, column, name, leaf, is_kept, asked=asked),
                )
        elif rows is None:
            for some in self._groups(numbers, _VIEWED_ROWS):
                yield from zip(some, self.read_views(some, column, name, leaf), strict=True)
        else:
            for number in numbers:
                yield number, self.read_view(number, column, name, leaf)

    def _joined(
        self, batches: Sequence[tuple[int, ApartBatch]], read: ReadPixels | None
    ) -> tuple[Integers, PieceRows]:
        parts = [batch for _, batch in batches]
        is_one = len(parts) == 1
        pixels = ApartPixels(
            [one.num_items for one in parts],
            [one.load for one in parts],
            read,
            [one.load_part for one in parts],
            [one.fill for one in parts],
            parts[0].known if is_one else None,
        )
        column = parts[0].column if is_one else join_batches(parts)
        return self.rows_of([number for number, _ in batches]), (column, pixels)

    def _groups(self, numbers: Sequence[int], num_rows: int) -> Iterator[list[int]]:
        """Yield record batches that have so many rows together, or more."""
        group: list[int] = []
        found = 0
        for number in numbers:
            group.append(number)
            found += self._headers[number].num_rows
            if found >= num_rows:
                yield group
                group, found = [], 0
        if group:
            yield group


def open_ipc(
    path: PathLike,
    image_column: str | None = None,
    *,
    storage_options: StorageOptions = None,
    rgb: RGB = None,
) -> ImageSource:
    """Open images in an Arrow IPC file.

    Args:
        path: The file, also by URL.
        image_column: Name of the column; may be left out if there is only one of images.
        storage_options: Arguments of fsspec's file system.
        rgb: ``"interleaved"`` if each pixel is red, green and blue side by side.
    """
    return open_table(IpcTable(path, storage_options), image_column, rgb)
