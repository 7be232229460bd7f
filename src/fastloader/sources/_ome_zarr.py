"""OME-Zarr images, plates and folders of them as a source."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.errors import ImageDataError, SettingsError, SourceError
from fastloader.sources._axis_names import AxisOrder
from fastloader.sources._compiled_kind import CompiledKind, CompiledWay
from fastloader.sources._description import ImageDescription
from fastloader.sources._file_tree import FileTree, Stamp
from fastloader.sources._image_folder import FoundImage, ImageFolder, look_at_all
from fastloader.sources._image_paths import ImagePaths, open_tree
from fastloader.sources._ome_zarr_description import (
    axis_letters,
    channel_names,
    describe_attributes,
    level_scale,
)
from fastloader.sources._ome_zarr_nodes import OmeZarrNode, find_nodes, read_attributes
from fastloader.sources._paths import StorageOptions
from fastloader.sources._zarr_array import ZarrArray, parse_array
from fastloader.sources._zarr_compiled import compiled_numbers
from fastloader.sources._zarr_pixels import read_box
from fastloader.sources._zip_tree import UnzippedTree

__all__ = ["OmeZarrFolder"]

Integers: TypeAlias = npt.NDArray[np.int64]

_IMAGES_PER_PART = 32
_MOST_PARTS = 4000
_SLACK = 1.01  # pixel sizes are rounded
_STAMP_BYTES = 16


@dataclass(frozen=True, slots=True)
class _ZarrLayout:
    """What images have in common; noted of each are size and time of the array's metadata."""

    order: AxisOrder
    array: ZarrArray
    level_path: str
    is_packed: bool
    """True in an archive."""

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return self.order.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def compiled(self) -> CompiledKind:
        numbers = compiled_numbers(self.array) if self.order.is_in_order else None
        if numbers is None or self.is_packed:
            return CompiledKind()
        return CompiledKind(CompiledWay.CHUNKS, numbers)

    @property
    def piece_bytes(self) -> int:
        chunks = self.array.chunks
        shape = self.array.shape if chunks is None else chunks.shape
        return math.prod(shape) * self.dtype.itemsize


class OmeZarrFolder(ImageFolder):
    """OME-Zarr images, of versions up to 0.5: one, a folder of them, a collection or a plate.

    Axes come from the metadata by type and name; groups of labels are left out. Columns: ``path``
    (relative), ``file_name`` and ``folder`` of the store; ``image`` in a collection; of plates
    ``plate``, ``well``, ``well_row``, ``well_column``, ``field`` and ``acquisition``.

    Chunks with the usual compressors, and shards of them, are decoded without the zarr package,
    whose event loop costs more than a small chunk; other codecs go through it.

    **Processes:** see `ImageFolder`. No thread is started for arrays that zarr is not needed for.

    References:
        OME-Zarr 0.4 and 0.5, https://ngff.openmicroscopy.org; Zarr 2 and 3,
        https://zarr-specs.readthedocs.io.
    """

    def __init__(
        self,
        path: ImagePaths,
        *,
        level: int | None = None,
        pixel_size: float | None = None,
        num_cores: int | None = None,
        storage_options: StorageOptions = None,
    ) -> None:
        """Look at the metadata of all images.

        Args:
            path: A store, a group in one, a folder of stores at any depth, or a list of stores;
                also by URL. Stores may be zip archives, whose names end in ``.zarr.zip`` or
                ``.ozx``.
            level: Level of resolution, 0 is the finest and is taken when left out.
            pixel_size: Instead of `level`: take the coarsest level whose pixels are no larger
                than this along X and Y, in the unit of the metadata, mostly micrometers; the
                finest if all are larger.
            num_cores: Images to look at at once; all that may be used when left out.
            storage_options: Arguments of fsspec's file system, for URLs.

        Raises:
            SourceError: If there are no images or they cannot be read.
            ImageDataError: If metadata make no sense, or axes or pixel type have no place here.
            SettingsError: If both `level` and `pixel_size` are given, or a list is of places
                that have nothing in common.
            MissingExtraError: If a URL needs a package that is not installed.
        """
        if level is not None and pixel_size is not None:
            raise SettingsError(
                f"level={level} and pixel_size={pixel_size}: expected one of them."
            )
        packed, stores = open_tree(path, storage_options)
        tree = UnzippedTree(packed)
        job = _Look(tree, find_nodes(tree, stores), level or 0, pixel_size)
        super().__init__(tree, look_at_all(job, tree, num_cores), (level, pixel_size))
        self._stamps = b""
        self._newest_ns: int = np.iinfo(np.int64).max

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all metadata, and of size and time of all files with pixels.

        What it is made of is noted: a file here that is changed later is an error then, where its
        image is decoded.
        """
        stamps = []
        newest_ns = 0
        arrays = [self._array_path(row) for row in range(self.num_rows)]
        for stamp, changed_ns in self._tree.each(self._tree.stamp_all, arrays):
            stamps.append(stamp)
            newest_ns = max(newest_ns, changed_ns)
        if self._tree.is_local:
            self._stamps, self._newest_ns = b"".join(stamps), newest_ns
        content = self._fingerprint.encode() + b"".join(stamps)
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def describe(self, row: int) -> ImageDescription:
        """Read what the attributes say; see `ImageFolder.describe`.

        Raises:
            SourceError: If they are gone.
        """
        layout = self.layout(row)
        attributes = read_attributes(self._tree, self.inside(row))
        if attributes is None:
            raise SourceError(f"{self.file_path(row)} is not there any more.")
        try:
            multiscale = attributes["multiscales"][0]
            level = next(
                one
                for one in multiscale["datasets"]
                if str(one["path"]).strip("/") == layout.level_path
            )
            return describe_attributes(attributes, level, axis_letters(multiscale))
        except (AttributeError, LookupError, StopIteration, TypeError, ValueError):
            return ImageDescription()  # the pixels are right whatever else is written

    def decode(self, row: int, out: npt.NDArray[Any], channels: Sequence[int] | None) -> None:
        """Read and decode one image; see `ImageFolder.decode`.

        Raises:
            SourceError: If its metadata were changed, or a chunk since the fingerprint was taken.
        """
        layout: _ZarrLayout = self.layout(row)
        tree, folder = self._tree, self._array_path(row)
        noted = super().numbers(row).tolist()
        self._check(folder, is_unchanged=_stamp(tree, folder, layout.array) == tuple(noted))
        self._decode(row, out, channels)
        if self._stamps:
            stamp = self._stamps[_STAMP_BYTES * row : _STAMP_BYTES * (row + 1)]
            self._check(folder, is_unchanged=tree.stamp_all(folder)[0] == stamp)

    def _check(self, folder: str, *, is_unchanged: bool) -> None:
        if not is_unchanged:
            raise SourceError(
                f"{self._tree.path(folder)} was changed since it was first looked at: make the "
                f"dataset anew."
            )

    def _decode(self, row: int, out: npt.NDArray[Any], channels: Sequence[int] | None) -> None:
        layout: _ZarrLayout = self.layout(row)
        tree, folder = self._tree, self._array_path(row)
        order, shape = layout.order, layout.array.shape
        axis = order.channel_axis
        if channels is None or axis is None:
            read_box(tree, folder, layout.array, (0,) * len(shape), order.as_stored(out))
            return
        for number, channel in enumerate(channels):
            start = tuple(channel if at == axis else 0 for at in range(len(shape)))
            target = order.as_stored(out[:, number : number + 1], num_channels=1)
            read_box(tree, folder, layout.array, start, target)

    def compiled_paths(self, row: int) -> tuple[str, str]:
        """Return the path of an array's metadata, and what those of all its files begin with."""
        layout: _ZarrLayout = self.layout(row)
        folder = self._tree.path(self._array_path(row))
        return f"{folder}/{layout.array.metadata_name}", f"{folder}/{layout.array.key_start}"

    def numbers(self, row: int) -> Integers:
        """Return the stamp of the metadata, and the time after which no file was changed.

        Args:
            row: Its row number.
        """
        return np.append(super().numbers(row), self._newest_ns)

    def _array_path(self, row: int) -> str:
        return _join(self.inside(row), self.layout(row).level_path)


class _Look:
    """Looks at the metadata of images, some a part.

    **Processes:** picklable.
    """

    def __init__(
        self,
        tree: UnzippedTree,
        nodes: Sequence[OmeZarrNode],
        level: int,
        pixel_size: float | None,
    ) -> None:
        self._tree = tree
        self._nodes = nodes
        self._level = level
        self._pixel_size = pixel_size
        per_part = _IMAGES_PER_PART if tree.is_local else 1
        self._per_part = max(per_part, -(-len(nodes) // _MOST_PARTS))

    @property
    def num_parts(self) -> int:
        return -(-len(self._nodes) // self._per_part)

    def run(self, part: int) -> list[FoundImage]:
        start = part * self._per_part
        return [self._look_at(node) for node in self._nodes[start : start + self._per_part]]

    def _look_at(self, node: OmeZarrNode) -> FoundImage:
        tree, folder = self._tree, self._tree.path(node.path)
        try:
            multiscale = node.attributes["multiscales"][0]
            levels = list(multiscale["datasets"])
            chosen = self._choose_level(multiscale, levels, folder)
            level_path = str(levels[chosen]["path"]).strip("/")
            axes = axis_letters(multiscale)
            names = channel_names(node.attributes)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ImageDataError(
                f"{folder}: its multiscales make no sense ({type(error).__name__}: {error})."
            ) from error
        if not level_path or ".." in level_path.split("/"):
            raise ImageDataError(f"{folder}: the path of a level, {level_path!r}, leads out.")
        place = _join(node.path, level_path)
        array = parse_array(tree, place)
        if array is None:
            raise SourceError(f"{tree.path(place)} is a level of an image, but no array.")
        order = AxisOrder.of(axes, array.shape, folder)
        stamp = _stamp(tree, place, array)
        digest = hashlib.blake2b(
            json.dumps(node.attributes, sort_keys=True).encode(), digest_size=16
        )
        return FoundImage(
            node.path,
            _ZarrLayout(order, array, level_path, tree.is_packed(node.path)),
            stamp,
            node.columns,
            names,
            (*stamp, digest.hexdigest()),
        )

    def _choose_level(
        self, multiscale: Mapping[str, Any], levels: Sequence[Any], folder: str
    ) -> int:
        """Return the number of the level to read.

        Raises:
            SourceError: If there is no such level.
        """
        if self._pixel_size is not None:
            sizes = [_pixel_size(multiscale, level) for level in levels]
            fine = [n for n, size in enumerate(sizes) if size <= self._pixel_size * _SLACK]
            return max(fine, key=lambda n: sizes[n], default=int(np.argmin(sizes)))
        if not -len(levels) <= self._level < len(levels):
            raise SourceError(
                f"{folder} has levels 0 to {len(levels) - 1} of resolution, but not "
                f"level={self._level}."
            )
        return self._level


def _join(image: str, level_path: str) -> str:
    return f"{image}/{level_path}" if image else level_path


def _stamp(tree: FileTree, folder: str, array: ZarrArray) -> Stamp:
    """Return what tells whether an array's metadata were changed.

    Raises:
        SourceError: If the file is gone.
    """
    path = f"{folder}/{array.metadata_name}"
    try:
        return tree.stamp(path)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{tree.path(path)} is not there any more ({error}).") from error


def _pixel_size(multiscale: Mapping[str, Any], level: Mapping[str, Any]) -> float:
    """Return the larger side of a pixel, from scales of the level and of the whole image."""
    axes = axis_letters(multiscale)
    size = level_scale(multiscale, level, len(axes))
    return float(max(size[axes.index("Y")], size[axes.index("X")]))
