"""Writes record batches to a DuckDB file, of which only the current row group is in memory."""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from fastloader.errors import SettingsError
from fastloader.sources import import_extra
from fastloader.sources._duckdb_key import ROW_COLUMN

__all__ = ["write_duckdb"]

_GROUP_ROWS = 2048
"""Of a row group: the fewest that DuckDB can. It is written when it is complete."""
_FIXED_BYTES = 128 << 20
"""Of memory that DuckDB may use beside the row group."""
_GROUP_SHARE = 1.25
"""Of a row group's bytes that DuckDB may use: it is copied in part while it is compressed."""


def write_duckdb(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str | None
) -> None:
    """Write a table called ``images``.

    With one thread, as two or more fill row groups of their own, and without a log, which would
    hold the last row group once more: the file has its name only when it is complete.

    Without compression rows have a primary key as well, by which DuckDB fetches one of them
    alone; it decodes 2048 to give one that is asked for by anything else.

    Args:
        path: File to make; nothing is there yet.
        schema: Of the batches.
        batches: Of any lengths.
        compression: None, or ``"zstd"`` for what DuckDB chooses for each column.

    Raises:
        SettingsError: If a column has the name of the key.
        MissingExtraError: If duckdb is not installed.
    """
    if ROW_COLUMN in schema.names:
        raise SettingsError(
            f"The column {ROW_COLUMN!r} is the number of the row in DuckDB files: rename it."
        )
    duckdb = import_extra("duckdb", "duckdb", "Writing DuckDB")
    settings = {
        "threads": 1,
        "temp_directory": f"{path}.tmp",
        "write_buffer_row_group_count": 1,
    }
    with duckdb.connect(config=settings) as connection:
        connection.execute("set enable_progress_bar = false")  # of its own, on the output
        name = str(path).replace("'", "''")
        connection.execute(
            f"attach '{name}' as written (row_group_size {_GROUP_ROWS}, "
            f"recovery_mode no_wal_writes)"
        )
        batches = _with_room(connection.cursor(), batches)
        if compression is None:
            connection.execute("set force_compression = 'uncompressed'")
            schema = schema.append(pa.field(ROW_COLUMN, pa.int64()))
            batches = _numbered(schema, batches)
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        connection.register("fastloader_rows", reader)
        connection.execute("create table written.images as from fastloader_rows")
        connection.unregister("fastloader_rows")
        if compression is None:
            connection.execute(f"alter table written.images add primary key ({ROW_COLUMN})")
        connection.execute("detach written")


def _numbered(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the number of each row as the last column.

    Args:
        schema: Of what is yielded.
        batches: Without numbers.
    """
    num_rows = 0
    for batch in batches:
        numbers = pa.array(range(num_rows, num_rows + batch.num_rows), pa.int64())
        num_rows += batch.num_rows
        yield pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema)


def _with_room(connection: Any, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, and let DuckDB use as much memory as the largest row group so far needs.

    Without a bound it keeps all that it has written, and with one that is too small it fails.
    """
    recent: deque[tuple[int, int]] = deque()
    num_rows = num_bytes = allowed_bytes = 0
    for batch in batches:
        recent.append((batch.num_rows, batch.nbytes))
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        while num_rows - recent[0][0] >= _GROUP_ROWS:
            old_rows, old_bytes = recent.popleft()
            num_rows -= old_rows
            num_bytes -= old_bytes
        needed_bytes = _FIXED_BYTES + int(num_bytes * _GROUP_SHARE)
        if needed_bytes > allowed_bytes:
            allowed_bytes = needed_bytes
            connection.execute(f"set memory_limit = '{allowed_bytes}B'")
        yield batch
