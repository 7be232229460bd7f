"""Formats of tables, and how a path tells them."""

from pathlib import Path

from fastloader.sources._duckdb import open_duckdb
from fastloader.sources._file_search import holds_file
from fastloader.sources._file_tree import LocalTree
from fastloader.sources._format import Format
from fastloader.sources._ipc import open_ipc
from fastloader.sources._lance import open_lance
from fastloader.sources._parquet_folder import PARQUET_ENDINGS, open_parquet
from fastloader.sources._vortex import open_vortex

__all__ = ["TABLE_FORMATS"]

_DIRECTORY_OF_OME_ARROW = "_ome_arrow_dataset.json"  # its chunks are rows of their own


def _holds_parquet(folder: Path) -> bool:
    is_other = (folder / _DIRECTORY_OF_OME_ARROW).exists()
    return not is_other and holds_file(LocalTree(str(folder)), PARQUET_ENDINGS)


TABLE_FORMATS = (
    Format(
        "lance",
        (".lance",),
        open_lance,
        lambda folder: (folder / "_versions").is_dir(),
        ("storage_options", "version", "rgb"),
    ),
    Format(
        "parquet",
        PARQUET_ENDINGS,
        open_parquet,
        _holds_parquet,
        ("storage_options", "rgb"),
    ),
    Format("duckdb", (".duckdb", ".ddb"), open_duckdb, options=("table", "query", "rgb")),
    Format("vortex", (".vortex",), open_vortex, options=("rgb",)),
    Format(
        "arrow", (".arrow", ".feather", ".ipc"), open_ipc, options=("storage_options", "rgb")
    ),
)
"""In the order in which they are tried."""
