"""A DuckDB file, open for reading, and what queries on it give."""

import contextlib
import gc
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastloader._extras import import_extra
from fastloader.errors import SourceError
from fastloader.machine._freed_memory import keep_some_freed_memory
from fastloader.sources._file_errors import check_unchanged, naming
from fastloader.sources._location import Location, PathLike
from fastloader.sources._opened_here import OpenedHere

__all__ = ["DuckDBFile", "TableName", "quoted_name", "quoted_text"]

_HEADER_BYTES = 3 * 4096  # which blocks are in use, and a number that grows with each change


class DuckDBFile:
    """A file that is read by queries.

    **Processes:** holds the path; each process and thread opens a connection that only reads.
    """

    def __init__(self, path: PathLike) -> None:
        """Look at the file.

        Args:
            path: A DuckDB file on local disk.

        Raises:
            SourceError: If it cannot be read.
        """
        self._location = Location(path)
        if not self._location.is_local:
            raise SourceError(
                f"{self.path}: DuckDB files are read from local disk only: copy the file, or "
                f"write its table as Parquet."
            )
        self.fingerprint = self._read_fingerprint()
        """Hash of the file's header, size and time of change."""
        self._opened = OpenedHere(self._open)

    @property
    def path(self) -> str:
        """The file, as error messages name it."""
        return self._location.path

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        self._opened.close()

    def reading(self) -> AbstractContextManager[None]:
        """Turn errors of DuckDB into `fastloader.errors.SourceError`, naming the file.

        Raises:
            MissingExtraError: If duckdb is not installed.
        """
        duckdb = import_extra("duckdb", "duckdb", f"Reading {self.path}")
        return naming(self.path, "a DuckDB file", duckdb.Error, RuntimeError, ValueError)

    def sql(self, query: str) -> Any:
        """Return the relation that DuckDB makes of a query.

        Args:
            query: A select statement.
        """
        # A cursor of its own, since a connection has one open result at a time.
        cursor = self._opened.get().cursor()
        # A name in a query must never be taken for a Python variable of some caller. A bar would
        # be written to the output, that of `--json` too, where a query takes long.
        cursor.execute(
            "set python_enable_replacements = false; set enable_progress_bar = false"
        )
        return cursor.sql(query)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query gives as Python objects.

        Args:
            query: A select statement.
        """
        rows: list[tuple[Any, ...]] = self.sql(query).fetchall()
        return rows

    def find_tables(self) -> list[tuple["TableName", bool, bool]]:
        """Return the tables and views, by name: whether rows have numbers, and whether there is a key."""
        found = self.rows(
            "select schema_name, table_name, true as has_rowid, has_primary_key from duckdb_tables() "
            "where not internal union all select schema_name, view_name, false, false from "
            "duckdb_views() where not internal order by schema_name, table_name, has_rowid desc"
        )
        return [
            (TableName(schema, name), has_row_ids, has_key)
            for schema, name, has_row_ids, has_key in found
        ]

    def _open(self) -> Any:
        """Connect, in this process and thread.

        Raises:
            SourceError: If it is another file by now.
        """
        # DuckDB takes its memory anew for each read: of a row of lists that is fetched it was over a third.
        keep_some_freed_memory()
        check_unchanged(self.path, self._read_fingerprint(), self.fingerprint)
        connection = self._connect()
        if connection is None:
            gc.collect()  # tables that nobody has any more may still be connected
            connection = self._connect()
        if connection is None:
            raise SourceError(
                f"{self.path} was replaced while this process has the file of before open, and "
                f"DuckDB goes on to show that one: let go of all datasets and connections that "
                f"were made from it first."
            )
        return connection

    def _connect(self) -> Any:
        """Return a connection, None if it would show another file.

        DuckDB shares one database between all connections to a path, whatever has become of the
        file since the first of them.
        """
        duckdb = import_extra("duckdb", "duckdb", f"Reading {self.path}")
        with self.reading():
            # DuckDB takes a tilde before a name for the home folder.
            path = os.path.abspath(self.path)  # noqa: PTH100 - a text
            connection = duckdb.connect(path, read_only=True)
        if _is_open_here(self.path):
            return connection
        connection.close()
        return None

    def _read_fingerprint(self) -> str:
        with naming(self.path, "a DuckDB file"), Path(self.path).open("rb") as file:
            return self._location.fingerprint(file.read(_HEADER_BYTES))


@dataclass(frozen=True, slots=True)
class TableName:
    """Name of a table or view."""

    schema: str
    """What it is in: ``"main"``, unless somebody made another."""
    name: str
    """Within the schema."""

    @property
    def shown(self) -> str:
        """As people write it."""
        return self.name if self.schema == "main" else f"{self.schema}.{self.name}"

    @property
    def in_sql(self) -> str:
        """As SQL has it."""
        return f"{quoted_name(self.schema)}.{quoted_name(self.name)}"


def quoted_name(name: str) -> str:
    """Return the name of a table or column as SQL has it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def quoted_text(value: str) -> str:
    """Return a text as SQL has it."""
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


def _is_open_here(path: str) -> bool:
    """Return whether this process has the file open that is at a path now."""
    descriptors = Path("/dev/fd")
    if not descriptors.is_dir():  # where it is missing, an open file cannot be replaced
        return True
    wanted = Path(path).stat()
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(OSError):  # that of the list itself is closed by now
            if os.path.samestat(os.fstat(int(descriptor.name)), wanted):
                return True
    return False
