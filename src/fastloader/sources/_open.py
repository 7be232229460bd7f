"""Picks the reader of a path: by its suffix or what lies there, or as the caller says."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fastloader.errors import SettingsError, SourceError
from fastloader.sources._parquet import ParquetSource
from fastloader.sources._protocol import ImageSource

__all__ = ["FORMATS", "Format", "SourcePath", "open_source"]

SourcePath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of storage and how to recognise and open it."""

    name: str
    """What ``format=`` calls it."""
    suffixes: tuple[str, ...]
    """Endings of names, lower case, of files or folders that are of this kind."""
    open: Callable[..., ImageSource]
    """Takes a path, the name of an image column or None, and the options of the format."""
    is_folder_of_it: Callable[[Path], bool] = lambda folder: False  # noqa: ARG005
    """Whether a local folder without such an ending is of this kind."""
    options: tuple[str, ...] = ()
    """Options of `open` beyond ``image_column``."""


FORMATS: Mapping[str, Format] = {
    one.name: one for one in (Format("parquet", (".parquet", ".pq"), ParquetSource),)
}
"""All formats by name, in the order in which they are tried."""


def open_source(
    path: SourcePath | Sequence[SourcePath],
    image_column: str | None = None,
    *,
    format: str | None = None,  # noqa: A002 - as pyarrow.dataset and polars call it
    **options: Any,
) -> ImageSource:
    """Open images wherever they are stored.

    Args:
        path: A file, a folder, or several files that follow one another.
        image_column: Name of the column of a table; may be left out if only one has images.
        format: A name of `FORMATS`; found by suffix or contents when left out.
        options: Of the format; None is the same as leaving one out.

    Raises:
        SourceError: If the format is not known, or the path cannot be read.
        SettingsError: If the format is no name, or does not have an option.
        MissingExtraError: If the format needs a package that is not installed.
    """
    chosen = _named(format) if format is not None else _detect(path)
    given = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(set(given) - set(chosen.options))
    if unknown:
        known = ", ".join(chosen.options) or "none"
        raise SettingsError(
            f"{path}: the format {chosen.name!r} has no option {', '.join(unknown)}; its "
            f"options are: {known}."
        )
    return chosen.open(path, image_column, **given)


def _named(name: str) -> Format:
    if name not in FORMATS:
        raise SettingsError(f"format={name!r}: expected one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def _detect(path: SourcePath | Sequence[SourcePath]) -> Format:
    """Return the format by the ending of the name, else by what a local folder holds.

    Raises:
        SourceError: If neither tells.
    """
    if isinstance(path, str | os.PathLike):
        first = os.fspath(path)
    elif path:
        first = os.fspath(path[0])
    else:
        raise SourceError("An empty list of files was given: expected one file or more.")
    name = first.partition("?")[0].rstrip("/").lower()
    for one in FORMATS.values():
        if name.endswith(one.suffixes):
            return one
    folder = Path(first)
    if folder.is_dir():
        for one in FORMATS.values():
            if one.is_folder_of_it(folder):
                return one
    endings = ", ".join(ending for one in FORMATS.values() for ending in one.suffixes)
    raise SourceError(
        f"{first} does not tell its format: expected a name that ends in one of {endings}, or "
        f"format= with one of {', '.join(FORMATS)}."
    )
