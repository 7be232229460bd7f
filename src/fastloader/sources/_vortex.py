"""Vortex files."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader._extras import import_extra
from fastloader.errors import SourceError
from fastloader.sources._file_errors import check_unchanged, naming
from fastloader.sources._interleaved import RGB
from fastloader.sources._location import Location, PathLike
from fastloader.sources._mapped_pages import find_views
from fastloader.sources._opened_here import OpenedHere, state_without
from fastloader.sources._protocol import ImageSource
from fastloader.sources._table import NumberedBatch
from fastloader.sources._table_source import open_table

__all__ = ["VortexTable", "open_vortex"]

Integers: TypeAlias = npt.NDArray[np.int64]

_MAGIC = b"VTXF"
_TAIL_BYTES = 64 << 10


class VortexTable:
    """The rows of a Vortex file.

    **Processes:** holds the path; each process and thread opens the file itself.
    """

    def __init__(self, path: PathLike) -> None:
        """Look at the file.

        Raises:
            SourceError: If it is no Vortex file, or cut off.
            MissingExtraError: If vortex-data is not installed.
        """
        self._location = Location(path)
        if not self._location.is_local:
            raise SourceError(
                f"{self._location.path}: Vortex files are read from local disk only: copy the "
                f"file, or write its table as Parquet."
            )
        self.fingerprint = self._read_fingerprint()
        """Hash of the end of the file, of its size and time of change."""
        self._opened = OpenedHere(self._open)

    def __getstate__(self) -> dict[str, Any]:
        return state_without(self, "schema")

    @property
    def path(self) -> str:
        """The file, as error messages name it."""
        return self._location.path

    @property
    def file_path(self) -> str:
        """Path or URL of the file alone."""
        return self.path

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        with self.reading():
            return self._file.dtype.to_arrow_schema()

    @cached_property
    def num_rows(self) -> int:
        """Number of rows."""
        with self.reading():
            return len(self._file)

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        self._opened.close()

    def reading(self) -> AbstractContextManager[None]:
        """Turn errors of Vortex into `fastloader.errors.SourceError`, naming the file."""
        return naming(self.path, "a Vortex file", ValueError, RuntimeError, TypeError, KeyError)

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole columns.

        Args:
            names: Of columns, at least one.
        """
        # What comes has views where the schema of the file has none.
        batches = list(self._scan(list(names)))
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.Table.from_batches(batches, batches[0].schema if batches else schema)

    def read_fields(
        self,
        column: str,
        fields: Sequence[str],
        rows: Integers | None,
        batch_rows: int,  # noqa: ARG002 - of the protocol
        without: Sequence[str] = (),  # noqa: ARG002
    ) -> Iterator[NumberedBatch]:
        """Yield some fields of a struct column, as columns of record batches.

        Args:
            column: Name of the column.
            fields: Of the struct.
            rows: Row numbers, ascending; all if None.
            batch_rows: Not used: smaller batches than those of the file decode it many times.
            without: Not used: lists are decoded with all that is in them.
        """
        expression = import_extra("vortex.expr", "vortex", f"Reading {self.path}")
        # A struct that is never null itself: Arrow aborts on a record batch that has null rows.
        struct = expression.column(column)
        projection = expression.pack({field: struct[field] for field in fields})
        options: dict[str, Any] = {}
        if rows is not None:
            vortex = import_extra("vortex", "vortex", f"Reading {self.path}")
            options["indices"] = vortex.array(pa.array(rows.astype(np.uint64)))
        done = 0
        for batch in self._scan(projection, **options):
            numbers = np.arange(done, done + batch.num_rows)
            done += batch.num_rows
            yield (numbers if rows is None else rows[numbers]), batch
            del batch  # not to be held while the next is decoded

    def find_views(self, column: pa.Array) -> list[tuple[range, npt.NDArray[np.uint8]]]:
        """Return those buffers that are views of the file; see `HasMappedFile`."""
        return find_views(column, self.path)

    def _scan(self, projection: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        # Not by `to_arrow`, whose stream ends the process where the text of an error has a zero
        # byte, as that of a damaged file may.
        for array in self._file.scan(projection, **options):
            batch = pa.RecordBatch.from_struct_array(array.to_arrow_array())
            del array
            yield batch
            del batch

    @property
    def _file(self) -> Any:
        return self._opened.get()

    def _open(self) -> Any:
        """Open the file in this process.

        Raises:
            SourceError: If it is another one by now.
        """
        vortex = import_extra("vortex", "vortex", f"Reading {self.path}")
        with self.reading():
            check_unchanged(self.path, self._read_fingerprint(), self.fingerprint)
            # Otherwise it keeps all segments that it has read, which is the whole file in the end.
            return vortex.open(self.path, memory_map=True)

    def _read_fingerprint(self) -> str:
        """Hash the end of the file.

        Raises:
            SourceError: If it is no Vortex file.
        """
        with naming(self.path, "a Vortex file"), self._location.opened() as file:
            size = file.size()
            tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
        if not tail.endswith(_MAGIC):
            raise SourceError(
                f"{self.path} is no Vortex file, or its end is cut off: {size} bytes that do not "
                f"end in {_MAGIC.decode()}."
            )
        return self._location.fingerprint(tail)


def open_vortex(
    path: PathLike, image_column: str | None = None, *, rgb: RGB = None
) -> ImageSource:
    """Open images in a Vortex file.

    Args:
        path: The file.
        image_column: Name of the column; may be left out if there is only one of images.
        rgb: ``"interleaved"`` if each pixel is red, green and blue side by side.
    """
    return open_table(VortexTable(os.fspath(path)), image_column, rgb)
