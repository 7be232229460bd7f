"""Formats of tables, and how a path tells them."""

from fastloader.sources._duckdb import open_duckdb
from fastloader.sources._format import Format
from fastloader.sources._ipc import open_ipc
from fastloader.sources._lance import open_lance
from fastloader.sources._parquet import ParquetSource
from fastloader.sources._vortex import open_vortex

__all__ = ["TABLE_FORMATS"]

TABLE_FORMATS = (
    Format("parquet", (".parquet", ".pq"), ParquetSource),
    Format(
        "lance",
        (".lance",),
        open_lance,
        lambda folder: (folder / "_versions").is_dir(),
        ("storage_options", "version"),
    ),
    Format("duckdb", (".duckdb", ".ddb"), open_duckdb, options=("table", "query")),
    Format("vortex", (".vortex",), open_vortex),
    Format("arrow", (".arrow", ".feather", ".ipc"), open_ipc, options=("storage_options",)),
)
"""In the order in which they are tried."""
