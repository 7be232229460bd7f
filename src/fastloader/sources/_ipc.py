"""Tables of Arrow IPC files, also called Feather: mapped into memory where they lie on disk."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import has_structs, without_fields
from fastloader.sources._interleaved import RGB
from fastloader.sources._ipc_file import IpcFile
from fastloader.sources._ipc_pixels import ApartBatch
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


class IpcTable(IpcFile):
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
        held: list[NumberedBatch] = []
        num_held = 0
        for number in self.find_batches(rows):
            columns = self.read_batch(number, column, is_kept)
            parts = [without_fields(columns[field], without) for field in fields]
            for part in parts:
                part.validate(full=True)  # offsets of a damaged file could point anywhere
            batch = pa.RecordBatch.from_arrays(parts, list(fields))
            held.append((self.rows_of(number), batch))
            num_held += batch.num_rows
            if not is_small or num_held >= batch_rows:
                yield _joined(held)
                held, num_held = [], 0
        if held:
            yield _joined(held)

    def read_pieces(
        self, column: str, name: str, rows: Integers | None
    ) -> Iterator[tuple[Integers, PieceRows]]:
        """Yield row numbers, and the chunks or planes of these rows, their pixels apart.

        To check a record batch takes a tenth of a millisecond in one that is joined of others,
        half alone, and one that is decompressed need not wait for others.

        Args:
            column: Name of the column.
            name: ``"chunks"`` or ``"planes"``.
            rows: Row numbers, ascending; the record batches that have them come whole.

        Raises:
            SourceError: If a record batch has fewer rows than the file says.
        """
        leaf = self.find_leaf(column, name)
        is_kept = self.find_buffers(column, (name,), ())
        # Of all rows, each is read once; of some, others may be looked at next.
        read = self.reading_apart() if rows is None else None
        joined_bytes = _JOINED_BYTES if read is None else _JOINED_READ_BYTES
        held: list[tuple[Integers, ApartBatch]] = []
        held_bytes = 0
        batches = self.find_batches(rows)
        asked = None if rows is None else batches
        for number in batches:
            apart = (
                None
                if leaf is None
                else self.read_apart(number, column, name, leaf, is_kept, asked=asked)
            )
            if held and (
                apart is None
                or not (apart.is_whole and held[0][1].is_whole)
                or held_bytes + apart.num_bytes > joined_bytes
            ):
                yield _joined_apart(name, held, read)
                held, held_bytes = [], 0
            if apart is not None:
                held_bytes += apart.num_bytes
                held.append((self.rows_of(number), apart))
                continue
            lists = self.read_batch(number, column, is_kept)[name]
            lists.validate(full=True)
            yield self.rows_of(number), (pa.StructArray.from_arrays([lists], [name]), None)
        if held:
            yield _joined_apart(name, held, read)


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


def _joined(batches: Sequence[NumberedBatch]) -> NumberedBatch:
    """Return several batches without pixels as one: each look at them costs the same for one."""
    if len(batches) == 1:
        return batches[0]
    return (
        np.concatenate([numbers for numbers, _ in batches]),
        pa.concat_batches([batch for _, batch in batches]),
    )


def _joined_apart(
    name: str, batches: Sequence[tuple[Integers, ApartBatch]], read: ReadPixels | None
) -> tuple[Integers, PieceRows]:
    parts = [one.lists for _, one in batches]
    lists = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    pixels = ApartPixels(
        [one.num_items for _, one in batches],
        [one.load for _, one in batches],
        read,
        [one.load_part for _, one in batches],
        [one.fill for _, one in batches],
    )
    numbers = np.concatenate([numbers for numbers, _ in batches])
    return numbers, (pa.StructArray.from_arrays([lists], [name]), pixels)
