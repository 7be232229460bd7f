"""What every source of images can do, whatever its format."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from fastloader.sources._description import ImageDescription

if TYPE_CHECKING:  # takes a while to import, and processes that decode images go without
    import pyarrow.compute as pc

__all__ = [
    "ClosableSource",
    "ColumnValues",
    "GroupedSource",
    "ImageSource",
    "ImageTable",
    "SelectedSource",
    "WritePixels",
]

ColumnValues: TypeAlias = npt.NDArray[Any] | list[Any]
"""Values of a metadata column: an array of numbers, or a list of anything, None for null."""

WritePixels: TypeAlias = Callable[[int, npt.NDArray[Any]], None]
"""Puts contiguous pixels at a position in memory, counted in bytes.

An `ArrayWriter` or `MemoryWriter` of `fastloader.shm` also lets a source make them where they
stay."""


@dataclass(frozen=True, slots=True)
class ImageTable:
    """What is known about the images of a source before a pixel is read."""

    shapes: npt.NDArray[np.int64]
    """Sizes T, C, Z, Y, X of each image, shape ``(num_rows, 5)``; 0 where there is none."""
    dtypes: tuple[np.dtype[np.generic], ...]
    """The distinct pixel types."""
    dtype_codes: npt.NDArray[np.uint8]
    """Position of each image's pixel type in `dtypes`, shape ``(num_rows,)``."""

    @property
    def num_rows(self) -> int:
        """Number of rows, with and without an image."""
        return len(self.shapes)

    @property
    def has_image(self) -> npt.NDArray[np.bool_]:
        """Which rows have an image, shape ``(num_rows,)``."""
        return self.shapes[:, 0] > 0

    @property
    def item_sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of one pixel of each image, shape ``(num_rows,)``."""
        return self.item_sizes_of(slice(None))

    def item_sizes_of(self, rows: npt.NDArray[np.int64] | slice) -> npt.NDArray[np.int64]:
        """Return the bytes of one pixel of some images."""
        sizes = np.array([dtype.itemsize for dtype in self.dtypes], np.int64)
        return sizes[self.dtype_codes[rows]]


class ImageSource(Protocol):
    """Images and columns beside them, by row number.

    A source holds paths and plain values; files are opened in the process and thread that
    reads, and never travel: every source can be pickled.
    """

    @property
    def where(self) -> str:
        """File and column, as error messages name them."""
        ...

    @property
    def fingerprint(self) -> str:
        """Text that changes when the content does."""
        ...

    @property
    def num_rows(self) -> int:
        """Number of rows, with and without an image, without reading any."""
        ...

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns that hold no images."""
        ...

    def read_table(self) -> ImageTable:
        """Return sizes and pixel types of all images, checked as far as they can be."""
        ...

    def read_channel_names(self) -> list[tuple[str | None, ...]]:
        """Return the names of the channels of each image; of none for a row without image."""
        ...

    def iterate_descriptions(self) -> Iterator[ImageDescription]:
        """Yield what is known of each image beside its pixels, row after row, read as asked."""
        ...

    def read_column(self, name: str) -> ColumnValues:
        """Return the values of a column that holds no images.

        Args:
            name: One of `column_names`.
        """
        ...

    def find_rows(self, condition: "pc.Expression") -> npt.NDArray[np.int64]:
        """Return the numbers of the rows that meet a condition, ascending.

        Args:
            condition: Over columns that hold no images, for instance
                ``pyarrow.compute.field("well") == "A1"``; where it is null, a row is left out.
        """
        ...

    def read_images(
        self,
        rows: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        write: WritePixels,
        *,
        channels: Sequence[int] | None = None,
        on_rows: Callable[[int], None] | None = None,
        num_threads: int = 1,
    ) -> None:
        """Write images to memory, each in C order of T, C, Z, Y, X and its own dtype.

        Args:
            rows: Row numbers, ascending, each once, none without an image.
            offsets: Position of each image's first byte, shape ``(len(rows),)``.
            write: Called for all parts of all images, from any thread.
            channels: Channels to keep, in this order; all when left out.
            on_rows: Called with the number of images written since the last call, from any
                thread, one call at a time.
            num_threads: Most threads to read with.
        """
        ...


@runtime_checkable
class SelectedSource(Protocol):
    """A source of some of the images at its place, of which there may be others."""

    @property
    def selection(self) -> str:
        """Text that is the same for the same choice, whatever the images hold by now."""
        ...


@runtime_checkable
class ClosableSource(ImageSource, Protocol):
    """A source that keeps files open."""

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        ...


@runtime_checkable
class GroupedSource(Protocol):
    """A source whose rows are stored in groups, each of which is decoded as a whole."""

    @property
    def group_starts(self) -> npt.NDArray[np.int64]:
        """First row of each group, and last the number of rows."""
        ...
