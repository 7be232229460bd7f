"""Read images from storage: one module per format."""

from fastloader.sources._conditions import columns_of, matching_rows
from fastloader.sources._ome_arrow_schema import ome_arrow_type
from fastloader.sources._open import FORMATS, Format, SourcePath, open_source
from fastloader.sources._parquet import ParquetSource
from fastloader.sources._protocol import (
    ColumnValues,
    GroupedSource,
    ImageSource,
    ImageTable,
    WritePixels,
)

__all__ = [
    "FORMATS",
    "ColumnValues",
    "Format",
    "GroupedSource",
    "ImageSource",
    "ImageTable",
    "ParquetSource",
    "SourcePath",
    "WritePixels",
    "columns_of",
    "matching_rows",
    "ome_arrow_type",
    "open_source",
]
