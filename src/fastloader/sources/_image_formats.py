"""Folders of images as formats: recognised by what they hold, their readers imported when used."""

import os
from pathlib import Path
from typing import Any

from fastloader.errors import SettingsError
from fastloader.sources._file_search import TIFF_SUFFIXES, holds_file
from fastloader.sources._format import Format
from fastloader.sources._protocol import ImageSource

__all__ = ["TIFF"]


def _open_tiff(path: Any, image_column: str | None, **options: Any) -> ImageSource:
    from fastloader.sources._tiff import TiffFolder  # noqa: PLC0415 - tifffile takes a while

    return TiffFolder(_single_path(path, image_column), **options)


def _single_path(path: Any, image_column: str | None) -> str:
    """Return the path of a folder of images.

    Raises:
        SettingsError: If there are several, or a column was named.
    """
    if image_column is not None:
        raise SettingsError(
            f"image_column={image_column!r}: {path} is a folder of images, which has no columns "
            f"of them."
        )
    if not isinstance(path, str | os.PathLike):
        raise SettingsError(
            f"{len(path)} paths were given, but a folder of images is one: give the folder that "
            f"they are all in, with pattern= if not all of it is meant."
        )
    return os.fspath(path)


def _holds_tiff(folder: Path) -> bool:
    return holds_file(str(folder), TIFF_SUFFIXES)


TIFF = Format(
    "tiff",
    TIFF_SUFFIXES,
    _open_tiff,
    _holds_tiff,
    ("pattern", "series", "level", "stack_axis", "join_files", "num_cores"),
)
