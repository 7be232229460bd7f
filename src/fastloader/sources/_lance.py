"""Lance tables."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader._extras import import_extra
from fastloader.errors import SourceError
from fastloader.machine._freed_memory import keep_some_freed_memory
from fastloader.sources._arrow_buffers import has_structs, stored, stored_schema
from fastloader.sources._file_errors import check_unchanged, naming
from fastloader.sources._interleaved import RGB
from fastloader.sources._location import PathLike, StorageOptions
from fastloader.sources._opened_here import OpenedHere, state_without
from fastloader.sources._paths import is_url
from fastloader.sources._protocol import ImageSource
from fastloader.sources._table import NumberedBatch
from fastloader.sources._table_source import open_table

__all__ = ["LanceTable", "open_lance"]

Integers: TypeAlias = npt.NDArray[np.int64]

_ROWS_OF_COLUMNS = 1 << 16
"""Rows of columns without images to take in one read."""


class LanceTable:
    """A Lance table at the version that it had when it was first opened.

    **Processes:** holds the path and version. Lance's threads do not live through a fork, and
    a child that calls it dies or hangs now and then: a child that was forked after its parent
    read with Lance is refused.
    """

    _watched_process: ClassVar[int | None] = None
    """The process that started Lance's threads, and looks out for forks."""
    _is_forked: ClassVar[bool] = False
    """Whether this process lacks them: set by the fork alone, as others may be given what the
    classes of their parent hold."""

    def __init__(
        self,
        path: PathLike,
        storage_options: StorageOptions = None,
        version: int | str | None = None,
    ) -> None:
        """Open the table.

        Args:
            path: Folder of the table, also by a URL that Lance knows.
            storage_options: Of Lance's object store.
            version: Number or tag of the version to read; the latest when left out.

        Raises:
            SourceError: If it is no Lance table.
            MissingExtraError: If pylance is not installed.
        """
        self.path = os.fspath(path)
        """Folder or URL."""
        self._storage_options = dict(storage_options or {})
        self._version = version
        self.fingerprint = ""
        """Hash of the version and of the unique names of its files."""
        self._opened = OpenedHere(self._open)
        dataset = self._opened.get()
        with self.reading():
            self._version = int(dataset.version)
            self.num_rows = int(dataset.count_rows())
            """Number of rows."""
            self.fingerprint = _fingerprint(dataset)

    def __getstate__(self) -> dict[str, Any]:
        return state_without(self, "schema")

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        with self.reading():
            return stored_schema(self._dataset.schema)

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        self._opened.close()

    @property
    def file_path(self) -> str:
        """Path or URL of the folder alone."""
        return self.path

    def reading(self) -> AbstractContextManager[None]:
        """Turn errors of Lance into `fastloader.errors.SourceError`, naming the table."""
        return naming(
            self.path,
            "a Lance table",
            ValueError,
            RuntimeError,
            NotImplementedError,
            OverflowError,
        )

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole columns.

        Args:
            names: Of columns, at least one.
        """
        columns = _quoted([(name,) for name in names])
        tables = [
            self._dataset.take(list(range(*some)), columns=columns)
            for some in _ranges(self.num_rows, _ROWS_OF_COLUMNS)
        ]
        return pa.concat_tables(tables) if tables else self._dataset.take([], columns=columns)

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
            rows: Row numbers, ascending; all if None.
            batch_rows: Rows to hold at once.
            without: Fields of the structs in lists to leave out.

        Raises:
            SourceError: If there are other numbers of rows than the table claims.
        """
        # Not by SQL, as expressions: to plan for that takes as long as to decode a large image.
        columns = _quoted(_paths(self.schema.field(column), fields, without))
        if rows is None:
            rows = np.arange(self.num_rows)
        # Not by `to_batches`, whose stream ends the process where the text of an error has a zero
        # byte, as that of a damaged file may; and which reads far ahead, in memory.
        for start, stop in _ranges(len(rows), batch_rows):
            some = rows[start:stop]
            done = 0
            table = self._dataset.take(some.tolist(), columns=columns)
            if len(table) != len(some):
                raise SourceError(
                    f"{self.path} cannot be read: expected {len(some)} rows from row "
                    f"{int(some[0])} on, but got {len(table)}."
                )
            for images in map(stored, table.column(column).chunks):
                parts = dict(zip(images.type.names, images.flatten(), strict=True))
                batch = pa.RecordBatch.from_arrays([parts[one] for one in fields], list(fields))
                done += batch.num_rows
                yield some[done - batch.num_rows : done], batch
            del table, images, parts, batch  # not to be held while the next rows are decoded

    @property
    def _dataset(self) -> Any:
        return self._opened.get()

    @classmethod
    def _note_fork(cls) -> None:
        cls._is_forked = True

    def _open(self) -> Any:
        """Open the table in this process.

        Raises:
            SourceError: If it cannot be, or this process was forked from one that read with Lance.
        """
        if LanceTable._is_forked:
            raise SourceError(
                f"{self.path}: this process was forked from one that had read with Lance, whose "
                f"threads do not live through a fork, so that reading could hang. Start workers "
                f"by multiprocessing_context='forkserver' or 'spawn', or preload the pixels."
            )
        lance = import_extra("lance", "lance", f"Reading {self.path}")
        if LanceTable._watched_process != os.getpid():
            LanceTable._watched_process = os.getpid()
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=LanceTable._note_fork)
            # Lance takes its memory anew for each read: of lists that was half of the time.
            keep_some_freed_memory()
        with self.reading():
            # Of a path that is not absolute, Lance takes what stands before a colon for a scheme.
            path = self.path if is_url(self.path) else os.path.abspath(self.path)  # noqa: PTH100 - a text
            dataset = lance.dataset(
                path, version=self._version, storage_options=self._storage_options or None
            )
            if self.fingerprint:
                check_unchanged(self.path, _fingerprint(dataset), self.fingerprint)
            return dataset


def open_lance(
    path: PathLike,
    image_column: str | None = None,
    *,
    storage_options: StorageOptions = None,
    version: int | str | None = None,
    rgb: RGB = None,
) -> ImageSource:
    """Open images in a Lance table.

    Args:
        path: Folder of the table, also by a URL that Lance knows.
        image_column: Name of the column; may be left out if there is only one of images.
        storage_options: Of Lance's object store.
        version: Number or tag of the version to read; the latest when left out.
        rgb: ``"interleaved"`` if each pixel is red, green and blue side by side.
    """
    return open_table(LanceTable(path, storage_options, version), image_column, rgb)


def _paths(
    column: pa.Field, fields: Sequence[str], without: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the paths of all that is read of a column.

    Args:
        column: Of structs.
        fields: Of the struct.
        without: Fields of the structs in lists to leave out.
    """
    paths: list[tuple[str, ...]] = []
    for name in fields:
        kind = column.type.field(name).type
        if not (without and has_structs(kind)):
            paths.append((column.name, name))
            continue
        kept = [one.name for one in kind.value_type if one.name not in without]
        paths += [(column.name, name, kind.value_field.name, one) for one in kept]
    return paths


def _quoted(paths: Sequence[Sequence[str]]) -> list[str]:
    """Return paths as Lance wants them; it reads no column with a backtick in its name."""
    return [".".join(f"`{part}`" for part in path) for path in paths]


def _ranges(num_rows: int, at_once: int) -> Iterator[tuple[int, int]]:
    for start in range(0, num_rows, at_once):
        yield start, min(start + at_once, num_rows)


def _fingerprint(dataset: Any) -> str:
    files = [str(fragment.metadata) for fragment in dataset.get_fragments()]
    text = repr((int(dataset.version), files))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
