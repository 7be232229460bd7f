"""Parquet files of a folder, with the columns that the names of its folders give."""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

from fastloader.errors import SourceError
from fastloader.sources._concatenated import ConcatenatedSource
from fastloader.sources._file_search import walk_folders
from fastloader.sources._file_tree import FileTree, LocalTree
from fastloader.sources._interleaved import RGB, InterleavedSource, is_interleaved
from fastloader.sources._location import Location, PathLike, StorageOptions
from fastloader.sources._parquet import ParquetSource
from fastloader.sources._protocol import ImageSource
from fastloader.sources._remote_tree import RemoteTree
from fastloader.sources._table_log import check_log

__all__ = ["PARQUET_ENDINGS", "open_parquet"]

Partition: TypeAlias = dict[str, Any]

PARQUET_ENDINGS = (".parquet", ".pq")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_MAX_DIGITS = 20  # of a number within int64, with its sign


def open_parquet(
    path: PathLike | Sequence[PathLike],
    image_column: str | None = None,
    *,
    storage_options: StorageOptions = None,
    rgb: RGB = None,
) -> ImageSource:
    """Open images in a Parquet file, in several, or in all of a folder.

    Files of a folder come in the order of their paths. Folders named ``key=value`` give columns
    (Hive partitions): of whole numbers if all values are, else of text.

    Args:
        path: A file, a folder, or several files, also by URL.
        image_column: Name of the column; may be left out if there is only one of images.
        storage_options: Arguments of fsspec's file system.
        rgb: ``"interleaved"`` if each pixel is red, green and blue side by side.

    Raises:
        SettingsError: If `rgb` is none of its values.
        SourceError: If there are no files, or one cannot be read.
    """
    interleaved = is_interleaved(rgb)
    numbers: set[str] = set()

    def open_one(file: PathLike, partition: Partition) -> ParquetSource | InterleavedSource:
        source = ParquetSource(
            file,
            image_column,
            storage_options=storage_options,
            partition=partition,
            missing_numbers=[key for key in numbers if partition.get(key, "") is None],
            is_interleaved=interleaved,
        )
        return InterleavedSource(source) if interleaved else source

    if isinstance(path, str | os.PathLike):
        location = Location(path, storage_options)
        is_file = location.path.partition("?")[0].lower().endswith(PARQUET_ENDINGS)
        if is_file and not location.is_local:
            try:
                return open_one(location.path, {})
            except SourceError:  # Spark's tables are folders of such names
                if not location.is_folder():
                    raise
        elif not location.is_folder():
            return open_one(location.path, {})
        names = _parquet_files(location)
        if not names:
            raise SourceError(
                f"{location.path} is a folder without Parquet files (of names that end in "
                f"{' or '.join(PARQUET_ENDINGS)})."
            )
        files: list[PathLike] = [location.inside(name).path for name in names.values()]
        partitions = _partitions(list(names))
        numbers.update(
            key for one in partitions for key, value in one.items() if isinstance(value, int)
        )
    else:
        files = list(path)
        partitions = [{} for _ in files]
    return ConcatenatedSource([
        open_one(file, partition) for file, partition in zip(files, partitions, strict=True)
    ])


def _parquet_files(location: Location) -> dict[str, str]:
    """Return the files below a folder, sorted: by their paths as people write them, as they are listed.

    Hidden ones are left out. Links are followed, each folder is seen once: one may lead upwards.

    Raises:
        SourceError: If it cannot be listed, or not all of its files count.
    """
    if location.is_local or location.is_of_web:
        tree: FileTree = (
            LocalTree(location.path)
            if location.is_local
            else RemoteTree(location.path, location.storage_options)
        )
        listed = (
            f"{folder}{name}" for folder, _, names in walk_folders(tree) for name in names
        )
        found = {tree.plain(path): path for path in listed}
    else:
        found = {path: path for path in location.list_files()}
    check_log(location, found)
    return {
        plain: found[plain]
        for plain in sorted(found)
        if plain.lower().endswith(PARQUET_ENDINGS) and not _is_hidden(plain)
    }


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in path.split("/"))


def _partitions(paths: list[str]) -> list[Partition]:
    """Return what the folders of each path say, by key."""
    texts = [
        {
            key: None if value == _NULL else unquote(value)
            for key, is_pair, value in (part.partition("=") for part in path.split("/")[:-1])
            if is_pair
        }
        for path in paths
    ]
    keys = sorted({key for one in texts for key in one})
    partitions: list[Partition] = [{} for _ in paths]
    for key in keys:
        values = [one.get(key) for one in texts]
        are_whole = all(_is_whole(value) for value in values if value is not None)
        for partition, value in zip(partitions, values, strict=True):
            partition[key] = int(value) if are_whole and value is not None else value
    return partitions


def _is_whole(text: str) -> bool:
    # Leading zeros are part of a name: plate=007 is no number. Nor is what int64 cannot hold.
    is_number = text.removeprefix("-").isdecimal() and len(text) <= _MAX_DIGITS
    return is_number and str(int(text)) == text and -(2**63) <= int(text) < 2**63
