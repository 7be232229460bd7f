"""A folder of image files as a source: what is known of each image, and how all are decoded."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.errors import SourceError
from fastloader.sources._compiled_kind import CompiledKind
from fastloader.sources._decode_images import REQUESTS_AT_ONCE, decode_images
from fastloader.sources._description import ImageDescription
from fastloader.sources._file_tree import FileTree
from fastloader.sources._jobs import Job, run_job
from fastloader.sources._protocol import ColumnValues, ImageTable, WritePixels
from fastloader.sources._text_list import TextList

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["FoundImage", "ImageFolder", "ImageLayout", "look_at_all"]

Integers: TypeAlias = npt.NDArray[np.int64]
Shape: TypeAlias = tuple[int, int, int, int, int]


class ImageLayout(Protocol):
    """What images of a folder have in common, kept once: hashable and picklable."""

    @property
    def shape(self) -> Shape:
        """Sizes T, C, Z, Y, X."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Pixel type, in the machine's own byte order."""
        ...

    @property
    def piece_bytes(self) -> int:
        """Bytes of pixels that one call of a decoder gives: of a strip, a tile, a chunk."""
        ...

    @property
    def compiled(self) -> CompiledKind:
        """How C reads the image, and what is noted of it therefore."""
        ...


@dataclass(frozen=True, slots=True)
class FoundImage:
    """An image as found by looking at its metadata."""

    path: str
    """Relative to the folder, with ``/``."""
    layout: ImageLayout
    """What it looks like."""
    numbers: tuple[int, ...]
    """What the format's reader needs to find the pixels, beside the layout."""
    columns: Mapping[str, str | int | None]
    """What the file's place says of the image."""
    channel_names: tuple[str | None, ...]
    """As far as the file has names."""
    stamp: tuple[Hashable, ...]
    """Changes when the file does."""


class ImageFolder(ABC):
    """Images in files of one format, in the order in which they were found.

    Subclasses find the images and decode one; this class does the rest of an `ImageSource`.

    **Processes:** holds paths, numbers and texts; files are opened by the process and thread
    that reads and closed again. A file that was changed since is an error.
    """

    def __init__(
        self, tree: FileTree, found: Sequence[FoundImage], asked: Sequence[Any]
    ) -> None:
        """Take what was found.

        Args:
            tree: Folder, or a single image.
            found: At least one image.
            asked: What of an image is read: its number, level of resolution and so on.
        """
        self._tree = tree
        self._paths = TextList(image.path for image in found)
        layouts = list(dict.fromkeys(image.layout for image in found))
        codes = {layout: code for code, layout in enumerate(layouts)}
        self._layouts = layouts
        self._layout_codes = np.array([codes[image.layout] for image in found], np.int64)
        self._piece_bytes = np.array([layout.piece_bytes for layout in layouts], np.int64)
        self._compiled = [layout.compiled for layout in layouts]
        self._compiled_ways = np.array([kind.way for kind in self._compiled], np.int64)
        self._numbers = np.array(
            [number for image in found for number in image.numbers], np.int64
        )
        self._number_ends = np.cumsum([0, *(len(image.numbers) for image in found)])
        self._channel_names = _share_equal([image.channel_names for image in found])
        names = list(dict.fromkeys(name for image in found for name in image.columns))
        self._columns: dict[str, ColumnValues | TextList] = {
            name: _pack_column([image.columns.get(name) for image in found]) for name in names
        }
        selection = repr((asked, [image.path for image in found])).encode()
        self.selection = hashlib.blake2b(selection, digest_size=16).hexdigest()
        """Tells these images from others of the same folder, whatever they look like."""
        stamps = hashlib.blake2b(digest_size=16)
        for image in found:
            stamps.update(repr((image.path, image.layout, image.stamp)).encode())
        self._fingerprint = stamps.hexdigest()

    @property
    def where(self) -> str:
        """The folder, as error messages name it."""
        return self._tree.where

    @property
    def fingerprint(self) -> str:
        """Hash of the names of all files and of when they were changed."""
        return self._fingerprint

    @property
    def num_rows(self) -> int:
        """Number of images."""
        return len(self._paths)

    @property
    def column_names(self) -> tuple[str, ...]:
        """What the places of the files say: their path, name, folder and so on."""
        return tuple(self._columns)

    def read_table(self) -> ImageTable:
        """Return sizes and pixel types of all images."""
        return self._table

    def read_channel_names(self) -> list[tuple[str | None, ...]]:
        """Return the names of the channels of each image, as far as its file has some."""
        codes, distinct = self._channel_names
        return [distinct[code] for code in codes.tolist()]

    def iterate_descriptions(self) -> Iterator[ImageDescription]:
        """Yield what is known of each image beside its pixels, row after row.

        ``id`` is the path in the folder, which is unique where what files say seldom is; ``name``
        what the file says, or its own name.
        """
        paths, names = self.read_column("path"), self.read_column("file_name")
        for row, (path, file_name) in enumerate(zip(paths, names, strict=True)):
            described = self.describe(row)
            yield replace(
                described,
                id=str(path) or str(file_name),
                name=described.name or str(file_name),
                image_type="image",
            )

    def read_column(self, name: str) -> ColumnValues:
        """Return the values of a column; see `ImageSource.read_column`.

        Raises:
            SourceError: If there is no such column.
        """
        if name not in self._columns:
            raise SourceError(
                f"{self.where} has no column {name!r}; it has {', '.join(self._columns)}."
            )
        values = self._columns[name]
        return list(values) if isinstance(values, TextList) else values

    def find_rows(self, condition: "pc.Expression") -> Integers:
        """Return the numbers of the images that meet a condition; see `ImageSource.find_rows`.

        Raises:
            SettingsError: If the condition does not fit the columns.
        """
        # Child processes that decode go without Arrow, which takes half a second to import.
        import pyarrow as pa  # noqa: PLC0415

        from fastloader.sources._conditions import columns_of, matching_rows  # noqa: PLC0415

        wanted = columns_of(condition, self.column_names) or self.column_names[:1]
        columns = {name: pa.array(self.read_column(name)) for name in wanted}
        return matching_rows(pa.table(columns), condition, self.where)

    def read_images(
        self,
        rows: Integers,
        offsets: Integers,
        write: WritePixels,
        *,
        channels: Sequence[int] | None = None,
        on_rows: Callable[[int], None] | None = None,
        num_threads: int = 1,
    ) -> None:
        """Write images to memory; see `ImageSource.read_images`.

        Images at URLs are asked for many at a time, whatever `num_threads` is.

        Raises:
            SourceError: If a file cannot be read.
            ImageDataError: If the pixels of an image make no sense.
            WorkerDiedError: If a process that decodes ended by itself.
        """
        decode_images(
            self,
            rows,
            offsets,
            write,
            channels=channels,
            on_rows=on_rows,
            num_cores=num_threads,
            is_local=self._tree.is_local,
        )

    @abstractmethod
    def describe(self, row: int) -> ImageDescription:
        """Read what the file says of an image beside its pixels.

        Args:
            row: Its row number.

        Raises:
            SourceError: If the file cannot be read.
        """

    @abstractmethod
    def decode(self, row: int, out: npt.NDArray[Any], channels: Sequence[int] | None) -> None:
        """Read and decode one image.

        Args:
            row: Its row number.
            out: Written to, contiguous, of the image's dtype and shape T, C, Z, Y, X, with
                only the chosen channels.
            channels: Channels to keep, in this order; all if None.

        Raises:
            SourceError: If the file cannot be read.
            ImageDataError: If its pixels make no sense.
        """

    def piece_bytes(self, rows: Integers) -> Integers:
        """Return how many bytes of pixels of each image are decoded at a time.

        Args:
            rows: Row numbers.
        """
        return self._piece_bytes[self._layout_codes[rows]]

    def compiled_ways(self, rows: Integers) -> Integers:
        """Return by which way of `CompiledWay` each image is read in C.

        Args:
            rows: Row numbers.
        """
        return self._compiled_ways[self._layout_codes[rows]]

    def raw_places(self, rows: Integers) -> Integers:
        """Return stamps of files, and where the pixels in them begin.

        Args:
            rows: Row numbers of images that are stored raw.

        Returns:
            Shape ``(images, 3)``.
        """
        return self._numbers[self._number_ends[rows][:, None] + np.arange(3)]

    def compiled_numbers(self, row: int) -> tuple[int, ...]:
        """Return what the layout of an image is in C, see `CompiledKind`.

        Args:
            row: Its row number.
        """
        return self._compiled[int(self._layout_codes[row])].numbers

    def compiled_paths(self, row: int) -> tuple[str, ...]:
        """Return the paths by which C finds an image: that of its file.

        Args:
            row: Its row number.
        """
        return (self.file_path(row),)

    def file_path(self, row: int) -> str:
        """Return the whole path of an image, as error messages name it.

        Args:
            row: Its row number.
        """
        return self._tree.path(self._paths[row])

    def inside(self, row: int) -> str:
        """Return the path of an image in the folder.

        Args:
            row: Its row number.
        """
        return self._paths[row]

    def layout(self, row: int) -> Any:
        """Return what an image looks like.

        Args:
            row: Its row number.
        """
        return self._layouts[self._layout_codes[row]]

    def numbers(self, row: int) -> Integers:
        """Return what the format's reader noted of an image.

        Args:
            row: Its row number.
        """
        return self._numbers[self._number_ends[row] : self._number_ends[row + 1]]

    @cached_property
    def _table(self) -> ImageTable:
        dtypes = tuple(dict.fromkeys(layout.dtype for layout in self._layouts))
        dtype_codes = np.array(
            [dtypes.index(layout.dtype) for layout in self._layouts], np.uint8
        )
        shapes = np.array([layout.shape for layout in self._layouts], np.int64)
        return ImageTable(shapes[self._layout_codes], dtypes, dtype_codes[self._layout_codes])


def look_at_all(job: Job, tree: FileTree, num_cores: int | None) -> list[Any]:
    """Return what the parts of a job found, in their order.

    Args:
        job: Looks at images; the result of a part is a list.
        tree: Where they are.
        num_cores: Parts to do at once; all that may be used if None.
    """
    parts: dict[int, list[Any]] = {}
    if num_cores is None and not tree.is_local:
        num_cores = REQUESTS_AT_ONCE
    run_job(job, parts.__setitem__, num_cores=num_cores, in_processes=tree.is_local)
    return [one for part in sorted(parts) for one in parts[part]]


def _pack_column(values: list[str | int | None]) -> ColumnValues | TextList:
    if all(isinstance(value, str) for value in values):
        return TextList(str(value) for value in values)
    if all(isinstance(value, int) for value in values):
        return np.array(values, np.int64)
    return values


def _share_equal(
    values: list[tuple[str | None, ...]],
) -> tuple[Integers, list[tuple[str | None, ...]]]:
    """Return which of the distinct values each is, and those."""
    distinct = list(dict.fromkeys(values))
    codes = {value: code for code, value in enumerate(distinct)}
    return np.array([codes[value] for value in values], np.int64), distinct
