"""Images whose three colours lie side by side in each pixel, as three channels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from fastloader.errors import SettingsError
from fastloader.sources._description import ChannelDescription, ImageDescription
from fastloader.sources._protocol import ClosableSource, ColumnValues, ImageTable, WritePixels

__all__ = ["RGB", "InterleavedSource", "is_interleaved"]

Integers: TypeAlias = npt.NDArray[np.int64]
RGB: TypeAlias = Literal["interleaved"] | None

_NAMES = ("red", "green", "blue")
_COLORS = len(_NAMES)
_BATCH_BYTES = 16 << 20


def is_interleaved(rgb: RGB) -> bool:
    """Return whether an option asks for interleaved colours.

    Raises:
        SettingsError: If it is none of its values.
    """
    if rgb not in {None, "interleaved"}:
        raise SettingsError(f"rgb={rgb!r}: expected 'interleaved', or None for what is stored.")
    return rgb is not None


class InterleavedSource:
    """Gives the composites that CytoDataFrame writes, of one channel by their metadata, three.

    **Processes:** as the source.
    """

    def __init__(self, source: ClosableSource) -> None:
        """Take a source whose images are of one channel and three times as wide.

        Args:
            source: Gives images of sizes T, 1, Z, Y, 3 X.
        """
        self._source = source

    @property
    def where(self) -> str:
        """File and column, as error messages name them."""
        return self._source.where

    @property
    def fingerprint(self) -> str:
        """Text that changes when the content does."""
        return f"{self._source.fingerprint}-interleaved"

    @property
    def num_rows(self) -> int:
        """Number of rows, with and without an image."""
        return self._source.num_rows

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns that hold no images."""
        return self._source.column_names

    def read_table(self) -> ImageTable:
        """Return sizes and pixel types of all images, of three channels each.

        Raises:
            SourceError: If the file cannot be read.
            ImageDataError: If sizes are absurd, or of another number of channels than 1.
        """
        return self._table

    def read_channel_names(self) -> list[tuple[str | None, ...]]:
        """Return ``("red", "green", "blue")`` for each image; nothing for a row without image."""
        return [_NAMES if has_image else () for has_image in self._table.has_image.tolist()]

    def iterate_descriptions(self) -> Iterator[ImageDescription]:
        """Yield what is known of each image beside its pixels, with channels of these names."""
        channels = tuple(ChannelDescription(id=name, name=name) for name in _NAMES)
        for description in self._source.iterate_descriptions():
            yield replace(description, channels=channels)

    def read_column(self, name: str) -> ColumnValues:
        """Return the values of a column that holds no images; see `ImageSource.read_column`."""
        return self._source.read_column(name)

    def find_rows(self, condition: pc.Expression) -> Integers:
        """Return the numbers of the rows that meet a condition; see `ImageSource.find_rows`."""
        return self._source.find_rows(condition)

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
        """Write images to memory; see `ImageSource.read_images`."""
        table = self._table
        sizes = table.shapes[rows].prod(axis=1) * table.item_sizes_of(rows)
        batch_rows = int(max(1, _BATCH_BYTES // max(1, int(sizes.max(initial=1)))))
        for first in range(0, len(rows), batch_rows):
            some = slice(first, first + batch_rows)
            starts = np.cumsum(sizes[some]) - sizes[some]
            block = np.empty(int(sizes[some].sum()), np.uint8)

            def keep(offset: int, pixels: npt.NDArray[Any], block: Any = block) -> None:
                content = pixels.reshape(-1).view(np.uint8)
                block[offset : offset + len(content)] = content

            self._source.read_images(rows[some], starts, keep, num_threads=num_threads)
            for row, start, size, offset in zip(
                rows[some].tolist(),
                starts.tolist(),
                sizes[some].tolist(),
                offsets[some].tolist(),
                strict=True,
            ):
                image = self._apart(block[start : start + size], row)
                write(
                    offset,
                    np.ascontiguousarray(image if channels is None else image[:, channels]),
                )
            if on_rows is not None:
                on_rows(len(starts))

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        self._source.close()

    def _apart(self, content: npt.NDArray[np.uint8], row: int) -> npt.NDArray[Any]:
        """Return the pixels of an image with its colours as an axis of their own."""
        t, colors, z, y, x = self._table.shapes[row].tolist()
        dtype = self._table.dtypes[self._table.dtype_codes[row]]
        pixels: npt.NDArray[Any] = content.view(dtype).reshape(t, z, y, x, colors)
        return pixels.transpose(0, 4, 1, 2, 3)

    @cached_property
    def _table(self) -> ImageTable:
        table = self._source.read_table()
        shapes = table.shapes.copy()
        shapes[:, 1] *= _COLORS
        shapes[:, 4] //= _COLORS
        return ImageTable(shapes, table.dtypes, table.dtype_codes)
