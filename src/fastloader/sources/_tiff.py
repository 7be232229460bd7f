"""Folders of TIFF and OME-TIFF files as a source."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastloader.errors import SourceError
from fastloader.sources._axis_names import StackAxis
from fastloader.sources._description import ImageDescription
from fastloader.sources._file_search import TIFF_SUFFIXES, file_columns, find_files
from fastloader.sources._file_tree import FileTree
from fastloader.sources._image_folder import FoundImage, ImageFolder, look_at_all
from fastloader.sources._image_paths import ImagePaths, open_tree
from fastloader.sources._paths import StorageOptions
from fastloader.sources._tiff_layout import TiffChoice, TiffLayout, open_series, read_layout
from fastloader.sources._tiff_pixels import read_pixels

__all__ = ["TiffFolder"]

_FILES_PER_PART = 16


class TiffFolder(ImageFolder):
    """The TIFF files of a folder and its subfolders, one image each.

    Axes come from the file's own metadata (OME, ImageJ, tifffile's); the samples of a pixel,
    such as red, green and blue, become channels. Files that an OME header joins to one image are
    one image. Columns: ``path`` (relative to the folder), ``file_name`` and ``folder`` (name of
    the folder the file is in).

    **Processes:** see `ImageFolder`.

    References:
        TIFF Revision 6.0 (1992); OME-TIFF specification,
        https://ome-model.readthedocs.io/en/stable/ome-tiff/.
    """

    def __init__(
        self,
        path: ImagePaths,
        *,
        pattern: str | None = None,
        series: int = 0,
        level: int = 0,
        stack_axis: StackAxis | None = None,
        join_files: bool = True,
        num_cores: int | None = None,
        storage_options: StorageOptions = None,
    ) -> None:
        """Look at the headers of all files.

        Args:
            path: Folder, one file, or a list of files; also by URL.
            pattern: Which files, like ``"*.ome.tif"`` or ``"train/*/*.tif"``: compared with the
                name, or with the relative path if it has a ``/``; ``*`` also stands for ``/``.
                All files with a suffix of TIFF when left out.
            series: Number of the image in each file.
            level: Level of resolution, 0 is the finest.
            stack_axis: What the pages of a file are that does not say so: "T", "C" or "Z".
            join_files: Join files that an OME header says are one image; at URLs they cannot be.
            num_cores: Files to look at at once; all that may be used when left out.
            storage_options: Arguments of fsspec's file system, for URLs.

        Raises:
            SourceError: If there is no such file or one cannot be read.
            ImageDataError: If a file is damaged, or its axes or pixel type have no place here.
            SettingsError: If a list is of files that have no folder in common.
            MissingExtraError: If the compression of a file needs imagecodecs, or a URL another
                package.
        """
        tree, listed = open_tree(path, storage_options)
        choice = TiffChoice(series, level, stack_axis, join_files)
        names = listed or find_files(tree, TIFF_SUFFIXES, pattern)
        if not names:
            raise SourceError(
                f"{tree.where} has no file {'of TIFF' if pattern is None else f'like {pattern!r}'} "
                f"({', '.join(TIFF_SUFFIXES[:2])}) in it or its subfolders."
            )
        super().__init__(tree, _look_at_all(tree, names, choice, num_cores), (choice,))

    def describe(self, row: int) -> ImageDescription:
        """Read what the OME header says, if there is one; see `ImageFolder.describe`."""
        layout: TiffLayout = self.layout(row)
        with open_series(self._tree, self.inside(row), layout.choice) as (file, series):
            header = file.ome_metadata
            finest = file.series[layout.choice.series]
            shrunk = {
                axis.lower(): finest.shape[finest.axes.index(axis)] / size
                for axis, size in zip(series.axes, series.shape, strict=True)
                if axis in "XYZ" and axis in finest.axes
            }
        if header is None:
            return ImageDescription()
        # Child processes that decode go without it.
        from fastloader.sources._ome_xml import describe_ome_xml  # noqa: PLC0415

        return describe_ome_xml(header, layout.choice.series).shrunk(shrunk)

    def decode(self, row: int, out: npt.NDArray[Any], channels: Sequence[int] | None) -> None:
        """Read and decode one image; see `ImageFolder.decode`."""
        layout: TiffLayout = self.layout(row)
        inside, notes = self.inside(row), self.numbers(row)
        if layout.order.is_in_order and channels is None:
            read_pixels(self._tree, inside, layout, notes, out)
            return
        stored = np.empty(layout.order.stored_shape, layout.dtype)
        read_pixels(self._tree, inside, layout, notes, stored)
        image = layout.order.arrange(stored)
        out[...] = image if channels is None else image[:, list(channels)]


class _Look:
    """Looks at files, some a part.

    **Processes:** picklable.
    """

    def __init__(self, tree: FileTree, names: Sequence[str], choice: TiffChoice) -> None:
        self._tree = tree
        self._names = names
        self._choice = choice

    @property
    def num_parts(self) -> int:
        return -(-len(self._names) // self._files_per_part)

    @property
    def _files_per_part(self) -> int:
        return max(_FILES_PER_PART if self._tree.is_local else 1, len(self._names) // 4000)

    def run(self, part: int) -> list[tuple[FoundImage, frozenset[str]]]:
        start = part * self._files_per_part
        found: list[tuple[FoundImage, frozenset[str]]] = []
        members: set[str] = set()
        for name in self._names[start : start + self._files_per_part]:
            if members and os.path.realpath(self._tree.path(name)) in members:
                continue  # was seen as a part of the image before
            layout, notes, facts = read_layout(self._tree, name, self._choice)
            columns = file_columns(self._tree, name)
            image = FoundImage(
                name, layout, tuple(notes), columns, facts.channel_names, tuple(notes[:2])
            )
            if len(facts.members) > 1:
                members |= facts.members
            found.append((image, facts.members))
        return found


def _look_at_all(
    tree: FileTree, names: Sequence[str], choice: TiffChoice, num_cores: int | None
) -> list[FoundImage]:
    images: list[FoundImage] = []
    joined: set[str] = set()
    for image, members in look_at_all(_Look(tree, names, choice), tree, num_cores):
        if len(members) > 1:
            if members & joined:
                continue
            joined |= members
        images.append(image)
    return images
