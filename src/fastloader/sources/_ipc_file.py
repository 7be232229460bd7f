"""Record batches of Arrow IPC files, whole or in part."""

import mmap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from fastloader.errors import SourceError
from fastloader.sources._arrow_buffers import has_structs, stored, stored_schema
from fastloader.sources._file_errors import check_unchanged, naming
from fastloader.sources._flatbuffer import HeaderError
from fastloader.sources._ipc_message import (
    BatchHeader,
    buffer_paths,
    find_batches,
    is_little_endian,
    read_footer,
    without_dictionaries,
)
from fastloader.sources._location import Location, PathLike, StorageOptions
from fastloader.sources._opened_here import OpenedHere, state_without

__all__ = ["IpcFile", "reading_file"]

Integers: TypeAlias = npt.NDArray[np.int64]
IsKept: TypeAlias = npt.NDArray[np.bool_]
T = TypeVar("T")

_MAPPED_VIEWS = 128
"""Views of record batches of a mapped file to keep: to find the arrays of one takes 0.2 ms."""


class IpcFile:
    """The record batches of an Arrow IPC file, by number.

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
        self.fingerprint = ""
        """Hash of the file's footer, size and time of change."""
        self._opened = OpenedHere(self._open)
        self._copied = OpenedHere(self._map_copy)
        self._whole = OpenedHere(self.reader)
        self._needed: dict[tuple[tuple[str, ...], ...], IsKept] = {}
        self._mapped: OpenedHere[dict[tuple[str, ...], Any]] = OpenedHere(dict)
        self._opened.get()

    def __getstate__(self) -> dict[str, Any]:
        return state_without(self, "_columns", "_found")

    @property
    def path(self) -> str:
        """The file, as error messages name it."""
        return self._location.path

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns.

        Raises:
            SourceError: If a name, also of a field of theirs, is no text.
        """
        return self._columns[0]

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        self._opened.close()
        self._copied.close()
        self._whole.close()
        self._mapped.close()

    def reading(self) -> AbstractContextManager[None]:
        """Turn errors of Arrow into `fastloader.errors.SourceError`, naming the file."""
        return reading_file(self.path)

    def find_batches(self, rows: Integers | None) -> Sequence[int]:
        """Return the numbers of the record batches that have some rows, ascending.

        Args:
            rows: Row numbers; all if None.
        """
        if rows is None:
            return range(len(self._headers))
        found = self.starts.searchsorted(rows, "right") - 1
        numbers: list[int] = (found if len(found) == 1 else np.unique(found)).tolist()
        return numbers

    def rows_of(self, numbers: Sequence[int]) -> Integers:
        """Return the row numbers of some record batches, ascending, at least one."""
        first, last = numbers[0], numbers[-1]
        if last - first + 1 == len(numbers):
            return np.arange(self.starts[first], self.starts[last + 1])
        return np.concatenate([np.arange(*self.starts[one : one + 2]) for one in numbers])

    def find_buffers(
        self, column: str, fields: Sequence[str], without: Sequence[str]
    ) -> IsKept | None:
        """Return which buffers of a record batch are needed, if that is known and not all are.

        Args:
            column: Name of an image column.
            fields: Of its struct.
            without: Fields of the structs in lists to leave out.
        """
        if not self._is_compressed or self.buffer_paths is None:
            return None
        key = (column, *fields), tuple(without)
        if key not in self._needed:
            within = [(), *((field,) for field in fields)]
            struct = self.schema.field(column).type
            unwanted = {
                (column, field, struct.field(field).type.value_field.name, name)
                for field in fields
                if has_structs(struct.field(field).type)
                for name in without
            }
            self._needed[key] = np.array([
                path[0] == column and path[1:2] in within and path[:4] not in unwanted
                for path in self.buffer_paths
            ])
        return self._needed[key]

    def read_batches(
        self, numbers: Sequence[int], column: str, is_kept: IsKept | None
    ) -> dict[str, pa.ChunkedArray]:
        """Return the fields of an image column, each null where its image is.

        Args:
            numbers: Of record batches, at least one.
            column: Name of the column.
            is_kept: From `find_buffers`; others are empty and must not be looked at.

        Raises:
            SourceError: If a record batch has fewer rows than the file says.
        """
        images = pa.chunked_array([
            self._read_checked(number, column, is_kept) for number in numbers
        ])
        fields = images.flatten()
        if set(map(len, fields)) != {len(images)}:
            self._refuse_rows(numbers, column)
        return dict(zip(images.type.names, fields, strict=True))

    def _read_checked(self, number: int, column: str, is_kept: IsKept | None) -> pa.StructArray:
        """Return the images of a record batch, a view of a mapped file.

        Raises:
            SourceError: If the record batch has fewer rows than the file says.
        """
        if self._is_mapped:
            return self._kept((column, str(number)), lambda: self._read(number, column, None))
        return self._read(number, column, is_kept)

    def _read(self, number: int, column: str, is_kept: IsKept | None) -> pa.StructArray:
        images = self._read_images(number, column, is_kept)
        size = self._headers[number].num_rows
        is_there = len(images) == size
        if (
            images.null_count
        ):  # all buffers are many objects: of images without nulls none is needed
            is_there &= 8 * images.buffers()[0].size >= size
        if not is_there:
            self._refuse_rows([number], column)
        return images

    def _refuse_rows(self, numbers: Sequence[int], column: str) -> NoReturn:
        sizes = ", ".join(str(self._headers[number].num_rows) for number in numbers)
        raise SourceError(
            f"{self.path}, record batch {', '.join(map(str, numbers))}: expected {sizes} rows of "
            f"{column!r}, but the file holds fewer."
        )

    def _kept(self, key: tuple[str, ...], make: Callable[[], T]) -> T:
        """Return views of a mapped file, which are made once for as many as are looked at."""
        mapped = self._mapped.get()
        if key not in mapped:
            if len(mapped) >= _MAPPED_VIEWS:
                mapped.clear()
            mapped[key] = make()
        views: T = mapped[key]
        return views

    def _read_images(self, number: int, column: str, is_kept: IsKept | None) -> pa.StructArray:
        header = self._headers[number]
        if is_kept is None or header.codec is None or len(is_kept) != header.num_buffers:
            # Some columns alone are copied, all of a mapped file only where they are decompressed.
            reader = self._whole.get() if self._is_mapped else self.reader([column])
            return stored(reader.get_batch(number).column(column))
        # Arrow would decompress everything, also pixels when only sizes are asked for.
        if self._location.is_local:
            mapping, mapped = self._copied.get()
            header.keep_mapped(mapping, is_kept)
            return stored(mapped.get_batch(number).column(column))
        schema = without_dictionaries(self.schema)
        return header.read(self._opened.get(), schema, is_kept).column(column)

    def reader(self, columns: Sequence[str] | None = None) -> ipc.RecordBatchFileReader:
        """Return Arrow's reader of the file.

        Args:
            columns: Names of those to read; all when left out.
        """
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
            if self._location.is_local:
                with pa.memory_map(self.path) as mapped:  # no descriptor stays open
                    # What is read is a part of all that is mapped, every page of which would
                    # be asked for, where it is in memory already, if all were read.
                    file = pa.BufferReader(mapped.read_buffer(1).parent)
            else:
                file = self._location.open_input()
            return self._checked(file)

    def _map_copy(self) -> tuple[mmap.mmap, ipc.RecordBatchFileReader]:
        """Map the file so that pages which are written to are copied first, and read it there.

        In this thread alone: each of Arrow's takes fresh memory for what it decompresses.
        """
        with self.reading(), Path(self.path).open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            copied = self._checked(pa.BufferReader(mapping))
            return mapping, ipc.open_file(copied, options=ipc.IpcReadOptions(use_threads=False))

    def _checked(self, file: pa.NativeFile) -> pa.NativeFile:
        """Return what was just opened, if it is the file that was looked at first.

        Raises:
            SourceError: If it is another one by now, or no Arrow IPC file.
        """
        found = self._location.fingerprint(read_footer(file, self.path))
        self.fingerprint = self.fingerprint or found
        check_unchanged(self.path, found, self.fingerprint)
        return file

    @cached_property
    def _columns(self) -> tuple[pa.Schema, list[tuple[str, ...]] | None]:
        """The schema, and which field each buffer of a record batch belongs to, if that is known.

        Raises:
            SourceError: If a name is no text: Arrow decodes each where somebody asks for it.
        """
        schema = stored_schema(self._whole.get().schema)
        with self.reading():
            return schema, buffer_paths(schema)

    @property
    def _headers(self) -> list[BatchHeader]:
        return self._found[0]

    @property
    def _is_native(self) -> bool:
        """Whether the numbers of the file are as this machine has them."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[list[BatchHeader], bool]:
        """The headers of all record batches, and whether numbers are as this machine has them."""
        with self.reading():
            file = self._opened.get()
            footer = read_footer(file, self.path)
            return find_batches(file, footer), is_little_endian(footer)

    @cached_property
    def _is_mapped(self) -> bool:
        """Whether record batches are views of the file, which take no memory."""
        return self._location.is_local and not self._is_compressed and self._is_native

    @cached_property
    def _is_compressed(self) -> bool:
        return any(header.codec is not None for header in self._headers)

    @cached_property
    def starts(self) -> Integers:
        """First row of each record batch, and last the number of rows."""
        sizes = [header.num_rows for header in self._headers]
        return np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]).astype(np.int64)

    @property
    def buffer_paths(self) -> list[tuple[str, ...]] | None:
        """Which field each buffer of a record batch belongs to; None if that is not known."""
        return self._columns[1] if self._is_native else None


def reading_file(path: str) -> AbstractContextManager[None]:
    """Turn errors of Arrow and of headers into `fastloader.errors.SourceError`, naming a file."""
    return naming(path, "an Arrow IPC file", ValueError, KeyError, HeaderError)
