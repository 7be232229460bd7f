"""Tables without images, from a file here or at a URL."""

import os
from collections.abc import Mapping
from pathlib import PurePath

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from fastloader.errors import MissingExtraError, SourceError
from fastloader.sources._location import Location, StorageOptions

__all__ = ["read_plain_table"]

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Of files of text, by what follows their ending."""


def read_plain_table(
    path: str | os.PathLike[str],
    column_types: Mapping[str, pa.DataType] | None = None,
    storage_options: StorageOptions = None,
) -> pa.Table:
    """Read a table of any columns.

    Args:
        path: Path or URL of a CSV or TSV file, which may be compressed (``.csv.gz``), or of a
            Parquet file or a folder of such.
        column_types: Types of columns in a file without types, by name; found by what stands
            there where left out.
        storage_options: Arguments of fsspec's file system, for URLs.

    Raises:
        SourceError: If it cannot be read.
        MissingExtraError: If the URL needs a package that is not installed.
    """
    location = Location(path, storage_options)
    try:
        return _read(location, column_types or {})
    except Exception as error:  # libraries behind file systems raise errors of their own
        if isinstance(error, MissingExtraError):
            raise
        raise SourceError(
            f"{location.path} cannot be read ({error}): expected a table as CSV, TSV or Parquet."
        ) from error


def _read(location: Location, column_types: Mapping[str, pa.DataType]) -> pa.Table:
    path = location.path if location.is_local else location.path.partition("?")[0]
    name = PurePath(path.lower())
    codec = _CODECS.get(name.suffix)
    delimiter = _DELIMITERS.get((name.with_suffix("") if codec else name).suffix)
    if delimiter is None and location.is_folder():
        system, root = location.file_system()
        return pq.read_table(root, filesystem=system)
    with location.opened() as file:
        if delimiter is None:
            return pq.read_table(file)
        return pa_csv.read_csv(
            file if codec is None else pa.CompressedInputStream(file, codec),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types=column_types),
        )
