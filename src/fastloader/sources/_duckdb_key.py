"""The key by which single rows of a table in a DuckDB file are fetched."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._duckdb_file import DuckDBFile, TableName, quoted_name, quoted_text

__all__ = ["ROW_COLUMN", "RowKey", "find_key"]

Integers: TypeAlias = npt.NDArray[np.int64]

ROW_COLUMN = "fastloader_row"
"""Of numbers of rows, which `fastloader.writing` makes the primary key: no column of the user's."""
_VECTOR_ROWS = 2048
"""That DuckDB decodes to give one of them, unless a key finds it."""
_FETCH_COST = 4
"""Rows that are decoded in the time in which one is fetched: of lists, of bytes two."""
_MAX_DECODED_BYTES = 256 << 20
"""To be decoded at once, which takes up to four times as much memory."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """A primary key of whole numbers."""

    column: str
    """Name of the column, quoted."""
    values: npt.NDArray[np.integer[Any]]
    """Of all rows."""

    def is_quicker(self, ids: Integers) -> bool:
        """Return whether to fetch rows takes less than to decode those around them, too.

        Args:
            ids: DuckDB's numbers of the rows.
        """
        num_vectors = len(np.unique(ids // _VECTOR_ROWS))
        return len(ids) * _FETCH_COST <= min(num_vectors * _VECTOR_ROWS, len(self.values))

    def is_leaner(self, stored_bytes: int) -> bool:
        """Return whether to fetch all rows one by one is worth the memory that it saves.

        It takes up to twice the time.

        Args:
            stored_bytes: Of the table, about.
        """
        num_rows = max(1, len(self.values))
        return stored_bytes / num_rows * min(_VECTOR_ROWS, num_rows) > _MAX_DECODED_BYTES


def find_key(file: DuckDBFile, table: TableName) -> RowKey | None:
    """Return what rows can be fetched by; None if there is nothing.

    Of values that DuckDB compressed by zstd, one takes those before it to be decompressed, so
    that nothing is gained.

    Args:
        file: Where the table is.
        table: Its name; not that of a view.
    """
    name = table.in_sql
    found = file.rows(
        f"select unnest(constraint_column_names) from duckdb_constraints() where "
        f"schema_name = {quoted_text(table.schema)} and table_name = {quoted_text(table.name)} and "
        f"constraint_type = 'PRIMARY KEY'"
    )
    if len(found) != 1:
        return None
    column = quoted_name(found[0][0])
    schema = file.sql(f"from {name} limit 0").to_arrow_table().schema
    # Only of bytes: lists of numbers are never compressed by zstd, but in many segments.
    if "binary" in str(schema) and file.rows(
        f"select 1 from pragma_storage_info({quoted_text(name)}) where compression = 'ZSTD'"
    ):
        return None
    keys = file.sql(f"select {column} from {name} order by rowid").to_arrow_table().column(0)
    if not pa.types.is_integer(keys.type):
        return None
    if not len(keys):
        return None
    return RowKey(column, np.concatenate([np.from_dlpack(part) for part in keys.chunks]))
