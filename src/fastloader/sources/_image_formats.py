"""Folders of images as formats: recognised by what they hold, their readers imported when used."""

import os
from pathlib import Path
from typing import Any

from fastloader.errors import SettingsError
from fastloader.sources._file_search import TIFF_SUFFIXES, holds_file
from fastloader.sources._file_tree import LocalTree
from fastloader.sources._format import Format
from fastloader.sources._ome_arrow_folder import MANIFEST, OmeArrowFolder
from fastloader.sources._ome_zarr_nodes import holds_store
from fastloader.sources._protocol import ImageSource
from fastloader.sources._zip_tree import ZIP_SUFFIXES, UnzippedTree

__all__ = ["IMAGE_FORMATS"]


def _open_tiff(path: Any, image_column: str | None, **options: Any) -> ImageSource:
    from fastloader.sources._tiff import TiffFolder  # noqa: PLC0415 - tifffile takes a while

    _check_no_column(path, image_column)
    return TiffFolder(path, **options)


def _open_ome_zarr(path: Any, image_column: str | None, **options: Any) -> ImageSource:
    from fastloader.sources._ome_zarr import OmeZarrFolder  # noqa: PLC0415

    _check_no_column(path, image_column)
    return OmeZarrFolder(path, **options)


def _open_ome_arrow_folder(path: Any, image_column: str | None, **options: Any) -> ImageSource:
    _check_no_column(path, image_column)
    if not isinstance(path, str | os.PathLike):
        raise SettingsError(
            f"{len(path)} paths were given, but a folder of ome-arrow is one: make a dataset of "
            f"each and join them by torch.utils.data.ConcatDataset."
        )
    return OmeArrowFolder(path, **options)


def _check_no_column(path: Any, image_column: str | None) -> None:
    """Check that no column was named.

    Raises:
        SettingsError: If one was.
    """
    if image_column is not None:
        raise SettingsError(
            f"image_column={image_column!r}: {path} is a folder of images, which has no columns "
            f"of them."
        )


def _holds_tiff(folder: Path) -> bool:
    return holds_file(LocalTree(str(folder)), TIFF_SUFFIXES)


def _holds_zarr(folder: Path) -> bool:
    return holds_store(UnzippedTree(LocalTree(str(folder))))


IMAGE_FORMATS = (
    Format(
        "ome-arrow-folder",
        (MANIFEST,),
        _open_ome_arrow_folder,
        lambda folder: (folder / MANIFEST).is_file(),
        ("storage_options",),
    ),
    Format(
        "ome-zarr",
        (".zarr", *ZIP_SUFFIXES),
        _open_ome_zarr,
        _holds_zarr,
        ("level", "pixel_size", "num_cores", "storage_options"),
    ),
    Format(
        "tiff",
        TIFF_SUFFIXES,
        _open_tiff,
        _holds_tiff,
        (
            *("pattern", "series", "level", "stack_axis", "join_files", "num_cores"),
            "storage_options",
        ),
    ),
)
"""Folders of images, in the order in which they are looked for."""
