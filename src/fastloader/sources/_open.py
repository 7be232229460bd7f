"""Picks the reader of a path: by its suffix or what lies there, or as the caller says."""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias

from fastloader.errors import SettingsError, SourceError
from fastloader.sources._format import Format
from fastloader.sources._image_formats import IMAGE_FORMATS
from fastloader.sources._paths import is_url, path_text
from fastloader.sources._protocol import ImageSource
from fastloader.sources._table_formats import TABLE_FORMATS

__all__ = ["FORMATS", "SourcePath", "open_source"]

SourcePath: TypeAlias = str | os.PathLike[str]


FORMATS: Mapping[str, Format] = {one.name: one for one in (*TABLE_FORMATS, *IMAGE_FORMATS)}
"""All formats by name, in the order in which they are tried."""


_OPTION_TYPES: Mapping[str, tuple[Any, str]] = {
    "join_files": (bool, "True or False"),
    "level": (Integral, "a whole number, 0 for the finest level"),
    "num_cores": (Integral, "a whole number"),
    "pattern": (str, "a text such as '*.ome.tif'"),
    "pixel_size": (Real, "a number"),
    "query": (str, "a select statement"),
    "series": (Integral, "a whole number, 0 for the first image of a file"),
    "storage_options": (Mapping, "a dict of arguments of fsspec's file system"),
    "table": (str, "the name of a table"),
    "version": (Integral | str, "a whole number, or the name of a tag"),
}
"""Of options of formats that are not checked by their values."""


def open_source(
    path: SourcePath | Sequence[SourcePath],
    image_column: str | None = None,
    *,
    format: str | None = None,  # noqa: A002 - as pyarrow.dataset and polars call it
    **options: Any,
) -> ImageSource:
    """Open images wherever they are stored.

    Args:
        path: A file, a folder, or several files that follow one another (any iterable).
        image_column: Name of the column of a table; may be left out if only one has images.
        format: A name of `FORMATS`; found by suffix or contents when left out.
        options: Of the format; None is the same as leaving one out.

    Raises:
        SourceError: If the format is not known, or the path cannot be read or is a pipe.
        SettingsError: If the format is no name or does not have an option, an option is of a wrong
            type, or a path is none.
        MissingExtraError: If the format needs a package that is not installed.
    """
    path = _paths(path)
    for one in path if isinstance(path, list) else [path]:
        _refuse_pipe(path_text(one))
    chosen = _named(format) if format is not None else _detect(path)
    given = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(set(given) - set(chosen.options))
    if unknown:
        known = ", ".join(chosen.options) or "none"
        raise SettingsError(
            f"{path}: the format {chosen.name!r} has no option {', '.join(unknown)}; its "
            f"options are: {known}."
        )
    for name, value in given.items():
        _check_option(name, value)
    return chosen.open(path, image_column, **given)


def _check_option(name: str, value: Any) -> None:
    """Check the type of an option, which libraries would be asked for in other words, or not at all.

    Raises:
        SettingsError: If it is of another.
    """
    kind, expected = _OPTION_TYPES.get(name, (object, ""))
    is_truth = isinstance(value, bool) and kind is not bool and kind is not object
    if is_truth or not isinstance(value, kind):
        raise SettingsError(f"{name}={value!r:.100}: expected {expected}.")


def _paths(path: Any) -> SourcePath | list[SourcePath]:
    """Return one path, or several as a list.

    Raises:
        SettingsError: If one is none.
    """
    if isinstance(path, str | os.PathLike):
        return path
    paths = list(path) if isinstance(path, Iterable) else [path]
    others = [one for one in paths if not isinstance(one, str | os.PathLike)]
    if others:
        raise SettingsError(f"{others[0]!r:.100} is no path: expected one, a URL, or several.")
    return paths


def _refuse_pipe(path: str) -> None:
    """Refuse what readers would wait for without end.

    Raises:
        SourceError: If it is a pipe, a socket or a device.
    """
    if is_url(path):
        return
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return  # nothing there, or no path: readers tell better
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SourceError(
            f"{path} is a pipe, a socket or a device: expected a file or a folder; write what comes "
            f"out of it to a file first."
        )


def _named(name: Any) -> Format:
    if not isinstance(name, str) or name not in FORMATS:
        raise SettingsError(f"format={name!r}: expected one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def _detect(path: SourcePath | Sequence[SourcePath]) -> Format:
    """Return the format by the ending of the name, else by what a local folder holds.

    Raises:
        SourceError: If neither tells, or the folder holds files of several formats.
    """
    if isinstance(path, str | os.PathLike):
        first = os.fspath(path)
    elif path:
        first = os.fspath(path[0])
    else:
        raise SourceError("An empty list of files was given: expected one file or more.")
    is_at_url = is_url(first)
    name = (first.partition("?")[0] if is_at_url else first).rstrip("/").lower()
    for one in FORMATS.values():
        if name.endswith(one.suffixes):
            return one
    folder = Path(first)
    if not is_at_url and not folder.exists():
        raise SourceError(f"{first} is not there.")
    if folder.is_dir():
        found = [one for one in FORMATS.values() if one.is_folder_of_it(folder)]
        if len(found) > 1:
            names = ", ".join(repr(one.name) for one in found)
            raise SourceError(
                f"{first} has files of several formats: say by format= which are meant, one of "
                f"{names}."
            )
        if found:
            return found[0]
    endings = ", ".join(ending for one in FORMATS.values() for ending in one.suffixes)
    raise SourceError(
        f"{first} does not tell its format: expected a name that ends in one of {endings}, or "
        f"format= with one of {', '.join(FORMATS)}."
    )
