"""Folders of images as formats: recognised by what they hold, their readers imported when used."""

import os
from pathlib import Path
from typing import Any

from fastloader.errors import SettingsError, SourceError
from fastloader.sources._file_search import TIFF_SUFFIXES, holds_file, walk_folders
from fastloader.sources._format import Format
from fastloader.sources._ome_arrow_folder import MANIFEST, OmeArrowFolder
from fastloader.sources._ome_zarr_nodes import is_zarr_node
from fastloader.sources._protocol import ImageSource

__all__ = ["IMAGE_FORMATS"]


def _open_tiff(path: Any, image_column: str | None, **options: Any) -> ImageSource:
    from fastloader.sources._tiff import TiffFolder  # noqa: PLC0415 - tifffile takes a while

    return TiffFolder(_single_path(path, image_column), **options)


def _open_ome_zarr(path: Any, image_column: str | None, **options: Any) -> ImageSource:
    from fastloader.sources._ome_zarr import OmeZarrFolder  # noqa: PLC0415

    return OmeZarrFolder(_single_path(path, image_column), **options)


def _open_ome_arrow_folder(path: Any, image_column: str | None) -> ImageSource:
    return OmeArrowFolder(_single_path(path, image_column))


def _single_path(path: Any, image_column: str | None) -> str:
    """Return the path of a folder of images.

    Raises:
        SettingsError: If there are several, or a column was named.
        SourceError: If it is a URL.
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
    single = os.fspath(path)
    if "://" in single:
        raise SourceError(
            f"{single} is a URL, but folders of images are read from local file systems only: copy "
            f"it, or convert it to Parquet, which is read from URLs too."
        )
    return single


def _holds_tiff(folder: Path) -> bool:
    return holds_file(str(folder), TIFF_SUFFIXES)


def _holds_zarr(folder: Path) -> bool:
    return any(is_zarr_node(folder / inside) for inside, _, _ in walk_folders(str(folder)))


IMAGE_FORMATS = (
    Format(
        "ome-arrow-folder",
        (MANIFEST,),
        _open_ome_arrow_folder,
        lambda folder: (folder / MANIFEST).is_file(),
    ),
    Format(
        "ome-zarr",
        (".zarr",),
        _open_ome_zarr,
        _holds_zarr,
        ("level", "pixel_size", "num_cores"),
    ),
    Format(
        "tiff",
        TIFF_SUFFIXES,
        _open_tiff,
        _holds_tiff,
        ("pattern", "series", "level", "stack_axis", "join_files", "num_cores"),
    ),
)
"""Folders of images, in the order in which they are looked for."""
