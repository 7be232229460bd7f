"""Read images from storage: one module per format."""

import importlib
from typing import TYPE_CHECKING, Any

from fastloader._extras import import_extra
from fastloader.sources._arrow_buffers import release_memory
from fastloader.sources._column_values import arrow_type_of, column_values
from fastloader.sources._conditions import columns_of, matching_rows
from fastloader.sources._description import ChannelDescription, ImageDescription
from fastloader.sources._format import Format
from fastloader.sources._ome_arrow_folder import OmeArrowFolder
from fastloader.sources._ome_arrow_schema import ome_arrow_type
from fastloader.sources._ome_arrow_table import PIXEL_TYPES
from fastloader.sources._open import FORMATS, SourcePath, open_source
from fastloader.sources._parquet import ParquetSource
from fastloader.sources._plain_table import read_plain_table
from fastloader.sources._protocol import (
    ClosableSource,
    ColumnValues,
    GroupedSource,
    ImageSource,
    ImageTable,
    SelectedSource,
    WritePixels,
)

if TYPE_CHECKING:
    from fastloader.sources._ome_zarr import OmeZarrFolder
    from fastloader.sources._tiff import TiffFolder

__all__ = [
    "FORMATS",
    "PIXEL_TYPES",
    "ChannelDescription",
    "ClosableSource",
    "ColumnValues",
    "Format",
    "GroupedSource",
    "ImageDescription",
    "ImageSource",
    "ImageTable",
    "OmeArrowFolder",
    "OmeZarrFolder",
    "ParquetSource",
    "SelectedSource",
    "SourcePath",
    "TiffFolder",
    "WritePixels",
    "arrow_type_of",
    "column_values",
    "columns_of",
    "import_extra",
    "matching_rows",
    "ome_arrow_type",
    "open_source",
    "read_plain_table",
    "release_memory",
]

_HOMES = {
    "OmeZarrFolder": "fastloader.sources._ome_zarr",
    "TiffFolder": "fastloader.sources._tiff",
}


def __getattr__(name: str) -> Any:
    # Packages that read images take a while to import, and tables do not need them.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
