"""Tables of Arrow IPC files, also called Feather: mapped into memory where they lie on disk."""

import mmap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from fastloader.errors import SourceError
from fastloader.sources._arrow_buffers import has_structs, without_fields
from fastloader.sources._file_errors import check_unchanged, naming
from fastloader.sources._flatbuffer import HeaderError
from fastloader.sources._interleaved import RGB
from fastloader.sources._ipc_message import (
    BatchHeader,
    buffer_paths,
    find_batches,
    names_within,
    without_dictionaries,
)
from fastloader.sources._location import Location, PathLike, StorageOptions
from fastloader.sources._opened_here import OpenedHere, state_without
from fastloader.sources._protocol import ImageSource
from fastloader.sources._table import NumberedBatch
from fastloader.sources._table_source import open_table

__all__ = ["IpcTable", "open_ipc"]

Integers: TypeAlias = npt.NDArray[np.int64]

_MAGIC = b"ARROW1"
_TAIL_BYTES = 10  # length of the footer, and the magic once more


class IpcTable:
    """The record batches of an Arrow IPC file.

    **Processes:** holds the path; each process and thread opens or maps the file itself.
    """

    def __init__(self, path: PathLike, storage_options: StorageOptions = None) -> None:
        """Look at the file.

        Args:
            path: An Arrow IPC file (not a stream), also by URL.
            storage_options: Arguments of fsspec's file system.

        Raises:
            SourceError: If it is no such file, or cut off.
        """
        self._location = Location(path, storage_options)
        self.fingerprint = self._read_fingerprint()
        """Hash of the file's footer, size and time of change."""
        self._opened = OpenedHere(self._open)
        self._copied = OpenedHere(self._map_copy)
        self._whole = OpenedHere(self._reader)

    def __getstate__(self) -> dict[str, Any]:
        return state_without(self, "schema", "_headers")

    @property
    def path(self) -> str:
        """The file, as error messages name it."""
        return self._location.path

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns.

        Raises:
            SourceError: If a name, also of a field of theirs, is no text.
        """
        schema = self._reader().schema
        with self.reading():
            list(names_within(schema))  # Arrow decodes each name where somebody asks for it
        return schema

    @cached_property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    @property
    def is_mapped(self) -> bool:
        """True for a local file whose buffers are not compressed."""
        return self._location.is_local and not self._is_compressed

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        self._opened.close()
        self._copied.close()
        self._whole.close()

    def reading(self) -> AbstractContextManager[None]:
        """Turn errors of Arrow into `fastloader.errors.SourceError`, naming the file."""
        return naming(self.path, "an Arrow IPC file", ValueError, KeyError)

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole columns.

        Args:
            names: Of columns, at least one.
        """
        reader = self._reader(names)
        table = reader.read_all().select(list(names))
        table.validate(full=True)
        return table

    def read_fields(
        self,
        column: str,
        fields: Sequence[str],
        rows: Integers | None,
        batch_rows: int,  # noqa: ARG002 - of the protocol
        without: Sequence[str] = (),
    ) -> Iterator[NumberedBatch]:
        """Yield some fields of a struct column, as columns of record batches.

        Args:
            column: Name of the column.
            fields: Of the struct.
            rows: Row numbers, ascending; the record batches that have them come whole.
            batch_rows: Not used: record batches are as they were written.
            without: Fields of the structs in lists to leave out.

        Raises:
            SourceError: If a record batch has fewer rows than the file says.
        """
        numbers = range(len(self._headers))
        if rows is not None:
            numbers = np.unique(np.searchsorted(self._starts, rows, "right") - 1).tolist()
        is_kept = self._find_buffers(column, fields, without)
        sizes = np.diff(self._starts).tolist()
        # Some columns alone are copied, all of a mapped file only where they are decompressed.
        reader = self._whole.get() if self.is_mapped else self._reader([column])
        for number in numbers:
            size = sizes[number]
            images = self._read_batch(reader, number, column, is_kept)
            validity = images.buffers()[0]
            if len(images) != size or (validity is not None and 8 * validity.size < size):
                raise SourceError(
                    f"{self.path}, record batch {number}: expected {size} rows of "
                    f"{column!r}, but the file holds fewer."
                )
            # Flattened, a field is null where its image is.
            columns = dict(zip(images.type.names, images.flatten(), strict=True))
            parts = [without_fields(columns[field], without) for field in fields]
            for part in parts:
                part.validate(full=True)  # offsets of a damaged file could point anywhere
            yield (
                np.arange(*self._starts[number : number + 2]),
                pa.RecordBatch.from_arrays(parts, list(fields)),
            )

    def _find_buffers(
        self, column: str, fields: Sequence[str], without: Sequence[str]
    ) -> npt.NDArray[np.bool_] | None:
        """Return which buffers of a record batch some fields of a column need, if that is known."""
        if not self._is_compressed or self._buffer_paths is None:
            return None
        within = [(), *((field,) for field in fields)]
        struct = self.schema.field(column).type
        unwanted = {
            (column, field, struct.field(field).type.value_field.name, name)
            for field in fields
            if has_structs(struct.field(field).type)
            for name in without
        }
        return np.array([
            path[0] == column and path[1:2] in within and path[:4] not in unwanted
            for path in self._buffer_paths
        ])

    def _read_batch(
        self,
        reader: ipc.RecordBatchFileReader,
        number: int,
        column: str,
        is_kept: npt.NDArray[np.bool_] | None,
    ) -> pa.StructArray:
        header = self._headers[number]
        if is_kept is None or not header.is_compressed or len(is_kept) != header.num_buffers:
            return reader.get_batch(number).column(column)
        # Arrow would decompress everything, also pixels when only sizes are asked for.
        try:
            if self._location.is_local:
                mapping, mapped = self._copied.get()
                header.keep_mapped(mapping, is_kept)
                return mapped.get_batch(number).column(column)
            schema = without_dictionaries(self.schema)
            return header.read(self._opened.get(), schema, is_kept).column(column)
        except HeaderError as error:
            raise SourceError(f"{self.path} cannot be read: {error}.") from error

    def _reader(self, columns: Sequence[str] | None = None) -> ipc.RecordBatchFileReader:
        options = ipc.IpcReadOptions(use_threads=False)
        if columns is not None:
            options.included_fields = [self.schema.get_field_index(name) for name in columns]
        with self.reading():
            return ipc.open_file(self._opened.get(), options=options)

    def _open(self) -> pa.NativeFile:
        """Open the file, which must be the one that was looked at.

        Raises:
            SourceError: If it is another one by now.
        """
        with self.reading():
            check_unchanged(self.path, self._read_fingerprint(), self.fingerprint)
            if self._location.is_local:
                return pa.memory_map(self.path)
            system, path = self._location.file_system()
            return system.open_input_file(path)

    def _map_copy(self) -> tuple[mmap.mmap, ipc.RecordBatchFileReader]:
        """Map the file so that pages which are written to are copied first, and read it there.

        In this thread alone: each of Arrow's takes fresh memory for what it decompresses.
        """
        with self.reading(), Path(self.path).open("rb") as file:
            check_unchanged(self.path, self._read_fingerprint(), self.fingerprint)
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            options = ipc.IpcReadOptions(use_threads=False)
            return mapping, ipc.open_file(pa.py_buffer(mapping), options=options)

    @cached_property
    def _headers(self) -> list[BatchHeader]:
        with self.reading():
            file = self._opened.get()
            try:
                return find_batches(file, _read_footer(file, self.path))
            except HeaderError as error:
                raise SourceError(f"{self.path} cannot be read: {error}.") from error

    @property
    def _is_compressed(self) -> bool:
        return any(header.is_compressed for header in self._headers)

    @cached_property
    def _starts(self) -> Integers:
        """First row of each record batch, and last the number of rows."""
        sizes = [header.num_rows for header in self._headers]
        return np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]).astype(np.int64)

    @cached_property
    def _buffer_paths(self) -> list[tuple[str, ...]] | None:
        return buffer_paths(self.schema)

    def _read_fingerprint(self) -> str:
        with self.reading(), self._location.opened() as file:
            return self._location.fingerprint(_read_footer(file, self.path))


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


def _read_footer(file: pa.NativeFile, path: str) -> bytes:
    """Return the footer of a file.

    Raises:
        SourceError: If there is none.
    """
    size = file.size()
    tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    footer_bytes = int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != _MAGIC or not 0 < footer_bytes <= size - _TAIL_BYTES - 8:
        raise SourceError(
            f"{path} is no Arrow IPC file, or its end is cut off: {size} bytes that do not end "
            f"in a footer. (The streaming format has none: write an IPC file, or Feather.)"
        )
    return bytes(file.read_at(footer_bytes, size - _TAIL_BYTES - footer_bytes))
