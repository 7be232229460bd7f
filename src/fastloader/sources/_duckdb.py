"""Tables in DuckDB files, and what a query makes of them."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.errors import SettingsError, SourceError
from fastloader.sources._arrow_buffers import has_structs
from fastloader.sources._duckdb_file import DuckDBFile, TableName, quoted_name, quoted_text
from fastloader.sources._duckdb_key import ROW_COLUMN, RowKey, find_key
from fastloader.sources._interleaved import RGB
from fastloader.sources._kept_blocks import KeptBlocks
from fastloader.sources._location import PathLike
from fastloader.sources._ome_arrow_layout import find_image_columns, listed
from fastloader.sources._opened_here import OpenedHere, state_without
from fastloader.sources._protocol import ImageSource
from fastloader.sources._table import NumberedBatch
from fastloader.sources._table_source import open_table

__all__ = ["DuckDBTable", "open_duckdb"]

Integers: TypeAlias = npt.NDArray[np.int64]

_ROW_ID = "fastloader_row_id"
_BATCHES_PER_READ = 8
_BATCHES_PER_BLOCK = 4
_KEPT_BATCHES = 10
"""Of a table that can be kept as a whole."""
_MAX_GAP = 4
"""Times the rows asked for, up to which those before them are not far: other workers have them."""
_ROWS_PER_CONNECTION = 32
"""Fetched one by one: for as long as it is connected DuckDB keeps what it has read of the file."""
_KNOWN_TEXT_BYTES = 8
"""Of texts, as far as statistics have them."""


class DuckDBTable:
    """A table of a DuckDB file, or the result of a query on it.

    **Processes:** holds the path; each process and thread opens a connection that only reads.
    """

    def __init__(
        self, path: PathLike, table: str | None = None, query: str | None = None
    ) -> None:
        """Connect and find the table.

        Args:
            path: A DuckDB file.
            table: Name of a table or view, of one outside of DuckDB's schema ``main`` also as
                ``"schema.table"``; may be left out if only one table has images.
            query: A select statement instead, which must give the same rows in the same order
                each time; single rows are found by running it.

        Raises:
            SourceError: If the file cannot be read or the table is missing.
            SettingsError: If both `table` and `query` are given.
            MissingExtraError: If duckdb is not installed.
        """
        if table is not None and query is not None:
            raise SettingsError(f"{path}: expected table= or query=, but got both.")
        self._file = DuckDBFile(path)
        self._last: OpenedHere[list[int]] = OpenedHere(list)
        self._kept = KeptBlocks()
        self._query = query.strip().rstrip(";") if query is not None else None
        self._table, self._has_row_ids, self._may_have_key = None, False, False
        if query is None:
            self._table, self._has_row_ids, self._may_have_key = self._find_table(table)

    def __getstate__(self) -> dict[str, Any]:
        return state_without(self, "schema")

    @property
    def path(self) -> str:
        """File and table, as error messages name them."""
        part = "the query" if self._table is None else f"table {self._table.shown!r}"
        return f"{self._file.path}, {part}"

    @property
    def file_path(self) -> str:
        """Path or URL of the file alone."""
        return self._file.path

    @property
    def fingerprint(self) -> str:
        """Hash of the file's header, size and time of change, and what is read of it."""
        text = repr((self._file.fingerprint, self._table and self._table.shown, self._query))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns, but of the rows' own numbers."""
        with self.reading():
            schema = self._schema_of(self._from)
        at = schema.get_field_index(ROW_COLUMN)
        return schema if at < 0 else schema.remove(at)

    @cached_property
    def num_rows(self) -> int:
        """Number of rows."""
        with self.reading():
            if self._has_row_ids:
                return len(self._row_ids)
            return int(self._file.rows(f"select count(*) from {self._from}")[0][0])

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        self._file.close()
        self._last.close()
        self._kept.clear()

    def reading(self) -> AbstractContextManager[None]:
        """Turn errors of DuckDB into `fastloader.errors.SourceError`, naming the table."""
        return self._file.reading()

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole columns; times of a zone in UTC, as DuckDB gives them in that of the machine.

        Args:
            names: Of columns, at least one.
        """
        wanted = ", ".join(map(quoted_name, names))
        table = self._file.sql(f"select {wanted} from {self._from}").to_arrow_table()
        return table.cast(pa.schema([_in_utc(field) for field in table.schema]))

    def read_fields(
        self,
        column: str,
        fields: Sequence[str],
        rows: Integers | None,
        batch_rows: int,
        without: Sequence[str] = (),  # noqa: ARG002 - of the protocol
    ) -> Iterator[NumberedBatch]:
        """Yield some fields of a struct column, as columns of record batches.

        Args:
            column: Name of the column.
            fields: Of the struct.
            rows: Row numbers, ascending; all if None.
            batch_rows: Rows to hold at once.
            without: Not used: lists are decoded with all that is in them.
        """
        wanted = ", ".join(
            f"{quoted_name(column)}.{quoted_name(field)} as {quoted_name(field)}"
            for field in fields
        )
        if self._has_row_ids:
            struct = self.schema.field(column).type
            if rows is None and any(has_structs(struct.field(one).type) for one in fields):
                yield from self._read_all(wanted, batch_rows)
            else:
                yield from self._read_table(wanted, rows, batch_rows)
            return
        first = 0
        for batch in self._batches(f"select {wanted} from {self._from}", batch_rows):
            numbers = first + np.arange(batch.num_rows)
            first += batch.num_rows
            if rows is None or np.isin(rows, numbers, assume_unique=True).any():
                yield numbers, batch

    def only_text(self, column: str, paths: Sequence[Sequence[str]]) -> str | None:
        """Return the text that all values of some fields have; None if that is not known.

        Any read of pixels decodes 2048 rows; statistics cost none.

        Args:
            column: Name of a struct column.
            paths: Names on the way to each field, those of the structs in a list among them.
        """
        if self._table is None or not self._has_row_ids:
            return None
        kind = self.schema.field(column).type
        places = {_place_within(kind, path) for path in paths}
        segments = self._file.rows(
            f"select stats, has_updates, regexp_extract(column_path, '.[0-9]+, (.*).', 1) as place "
            f"from pragma_storage_info({quoted_text(self._table.in_sql)}) where "
            f"column_name = {quoted_text(column)} and place in ({', '.join(map(quoted_text, places))})"
        )
        if {place for _, _, place in segments} != places:
            return None
        texts = set()
        for stats, has_updates, _ in segments:
            # Before version 2 these are words; of long texts only the beginning is kept.
            if has_updates or not isinstance(stats, dict) or stats.get("has_null", True):
                return None
            if stats.get("max_string_length", _KNOWN_TEXT_BYTES + 1) > _KNOWN_TEXT_BYTES:
                return None
            texts |= {stats.get("min"), stats.get("max")}
        return texts.pop() if len(texts) == 1 else None

    def _read_table(
        self, wanted: str, rows: Integers | None, batch_rows: int
    ) -> Iterator[NumberedBatch]:
        """Yield rows of a table, which DuckDB finds by number."""
        if rows is None:
            yield from self._numbered(wanted, "true", batch_rows)
            return
        key = self._key
        if key is not None and key.is_quicker(self._row_ids[rows]):
            yield from self._read_where(key.column, key.values, wanted, rows, batch_rows)
            return
        block_rows = batch_rows * _BATCHES_PER_BLOCK
        blocks = rows // block_rows
        may_load = self._is_worth_blocks(rows, batch_rows)
        left = []
        for block in np.unique(blocks).tolist():
            some = rows[blocks == block]
            kept = self._find_block(wanted, block, block_rows, may_load=may_load)
            if kept is None:
                left.append(some)
            else:
                yield from kept
        alone = np.concatenate([rows[:0], *left])
        yield from self._read_where("rowid", self._row_ids, wanted, alone, batch_rows)

    def _read_all(self, wanted: str, batch_rows: int) -> Iterator[NumberedBatch]:
        """Yield all rows of a table with their chunks or planes."""
        key = self._key
        if key is None or not key.is_leaner(os.path.getsize(self.file_path)):  # noqa: PTH202 - a text
            yield from self._numbered(wanted, "true", batch_rows)
            return
        for row, value in enumerate(key.values.tolist()):
            if row % _ROWS_PER_CONNECTION == 0:
                self._file.close()
            yield from self._numbered(wanted, f"{key.column} = {value}", batch_rows)

    def _read_where(
        self,
        name: str,
        values: npt.NDArray[np.integer[Any]],
        wanted: str,
        rows: Integers,
        batch_rows: int,
    ) -> Iterator[NumberedBatch]:
        """Yield the rows that have given values in a column, which DuckDB looks for.

        Args:
            name: Of the column, in SQL.
            values: Of the column, of all rows.
            wanted: Columns, in SQL.
            rows: Row numbers, ascending.
            batch_rows: Rows to hold at once.
        """
        at_once = batch_rows * _BATCHES_PER_READ
        for at in range(0, len(rows), at_once):
            some = values[rows[at : at + at_once]].tolist()
            condition = f"{name} in ({', '.join(map(str, some))})"
            yield from self._numbered(wanted, condition, batch_rows)

    def _is_worth_blocks(self, rows: Integers, batch_rows: int) -> bool:
        """Return whether rows around those asked for are likely to be asked for soon.

        DuckDB decodes 2048 rows to give one, but to copy another of them to Arrow takes up to a
        third of that, too.

        Args:
            rows: Those asked for.
            batch_rows: As many as `read_fields` may hold.
        """
        last = self._last.get()
        gap = int(rows[0]) - last[-1] if last else 0
        last[:] = [int(rows[-1])]
        follows = 0 < gap <= _MAX_GAP * len(rows)
        return follows or (gap != 0 and self.num_rows <= batch_rows * _KEPT_BATCHES)

    def _find_block(
        self, wanted: str, block: int, block_rows: int, *, may_load: bool
    ) -> Sequence[NumberedBatch] | None:
        """Return rows that follow each other, if they are kept or are to be.

        Args:
            wanted: Columns, in SQL.
            block: Number of the block.
            block_rows: Rows of each block.
            may_load: Whether to read them if they are not kept.
        """
        key = (wanted, block_rows, block)
        kept: Sequence[NumberedBatch] | None = self._kept.get(key)
        if kept is None and may_load:
            ids = self._row_ids[block * block_rows : (block + 1) * block_rows]
            condition = f"rowid between {ids[0]} and {ids[-1]}"
            kept = list(self._numbered(wanted, condition, block_rows))
            self._kept.put(key, kept, sum(batch.nbytes for _, batch in kept))
        return kept

    def _numbered(
        self, wanted: str, condition: str, batch_rows: int
    ) -> Iterator[NumberedBatch]:
        query = f"select {wanted}, rowid as {_ROW_ID} from {self._from} where {condition}"
        for batch in self._batches(query, batch_rows):
            ids = np.from_dlpack(batch.column(_ROW_ID))
            numbers = np.searchsorted(self._row_ids, ids)
            images = batch.drop_columns([_ROW_ID])
            order = np.argsort(numbers, kind="stable")
            if (np.diff(order) != 1).any():
                images = images.take(pa.array(order))
            del batch  # not to be held while the next is decoded
            yield numbers[order], images
            del images

    def _batches(self, query: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
        yield from self._file.sql(query).to_arrow_reader(batch_rows)

    @property
    def _from(self) -> str:
        # A query may end in a comment, which ends with its line.
        return f"({self._query}\n)" if self._table is None else self._table.in_sql

    @cached_property
    def _row_ids(self) -> Integers:
        """DuckDB's number of each row, ascending: there are gaps where rows were deleted."""
        table = self._file.sql(f"select rowid from {self._from}").to_arrow_table()
        ids = [np.from_dlpack(part) for part in table.column(0).chunks]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *ids]))

    @cached_property
    def _key(self) -> RowKey | None:
        if self._table is None or not self._may_have_key:
            return None
        return find_key(self._file, self._table)

    def _schema_of(self, what: str) -> pa.Schema:
        schema: pa.Schema = (
            self._file.sql(f"select * from {what} limit 0").to_arrow_table().schema
        )
        return schema

    def _find_table(self, wanted: str | None) -> tuple[TableName, bool, bool]:
        """Return the table to read, whether its rows have numbers, and whether it has a key.

        Raises:
            SourceError: If it is missing, or none was named and not exactly one has images.
        """
        with self.reading():
            known = self._file.find_tables()
            candidates = [
                one
                for one in known
                if wanted in {one[0].shown, one[0].name, f"{one[0].schema}.{one[0].name}"}
                or (wanted is None and find_image_columns(self._schema_of(one[0].in_sql)))
            ]
            # That of the schema that is used where none is named, before all of the same name.
            candidates = [one for one in candidates if one[0].shown == wanted] or candidates
        if len(candidates) != 1:
            asked = "tables with images" if wanted is None else f"tables of the name {wanted!r}"
            raise SourceError(
                f"{self._file.path} has {len(candidates)} {asked} (its tables and views are "
                f"{listed([name.shown for name, *_ in known])}): expected one, or table= to say which, or query=."
            )
        table, has_row_ids, has_key = candidates[0]
        return table, has_row_ids, has_key


def open_duckdb(
    path: PathLike,
    image_column: str | None = None,
    *,
    table: str | None = None,
    query: str | None = None,
    rgb: RGB = None,
) -> ImageSource:
    """Open images in a DuckDB file.

    Args:
        path: The file.
        image_column: Name of the column; may be left out if there is only one of images.
        table: Name of a table or view; may be left out if only one has images.
        query: A select statement instead.
        rgb: ``"interleaved"`` if each pixel is red, green and blue side by side.
    """
    return open_table(DuckDBTable(os.fspath(path), table, query), image_column, rgb)


def _place_within(kind: pa.DataType, path: Sequence[str]) -> str:
    """Return the numbers that DuckDB has for a field in a struct."""
    position = []
    for name in path:
        if not pa.types.is_struct(kind):
            kind = kind.value_type
            position.append(1)
        position.append(kind.get_field_index(name) + 1)
        kind = kind.field(name).type
    return ", ".join(map(str, position))


def _in_utc(field: pa.Field) -> pa.Field:
    kind = field.type
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return field
    return field.with_type(pa.timestamp(kind.unit, "UTC"))
