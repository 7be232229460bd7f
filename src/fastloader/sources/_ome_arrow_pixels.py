"""Pixels from Arrow's buffers into a block of memory, one copy, no Python object per pixel."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.errors import ImageDataError
from fastloader.sources._image_runs import BLOCK_ROWS, ImageRuns
from fastloader.sources._ome_arrow_layout import ColumnLayout
from fastloader.sources._ome_arrow_pieces import (
    PieceError,
    Pieces,
    box,
    check_cover,
    find_pieces,
    first_pixels,
)
from fastloader.sources._ome_arrow_table import has_pieces
from fastloader.sources._pixels_apart import ApartPixels
from fastloader.sources._protocol import ImageTable, WritePixels
from fastloader.sources._stored_pixels import StoredPixels, byte_pixels, list_pixels

__all__ = ["PixelWriter"]

Integers: TypeAlias = npt.NDArray[np.int64]


class PixelWriter:
    """Writes the images of record batches to their places in memory."""

    def __init__(
        self,
        layout: ColumnLayout,
        table: ImageTable,
        rows: Integers,
        offsets: Integers,
        write: WritePixels,
        *,
        channels: Sequence[int] | None,
        where: str,
    ) -> None:
        """Take what to write and where to.

        Args:
            layout: How the column stores its images.
            table: Sizes and pixel types of all images.
            rows: Row numbers to write, ascending.
            offsets: Position of the first byte of each image of `rows`.
            write: Puts pixels there.
            channels: Channels to keep, in this order; all if None.
            where: File and column, for error messages.
        """
        self._layout = layout
        self._table = table
        self._rows = rows
        self._offsets = offsets
        self._write = write
        self._channels = None if channels is None else tuple(channels)
        self._where = where

    def write(
        self,
        column: pa.StructArray,
        row_numbers: Integers,
        is_wanted: npt.NDArray[np.bool_] | None = None,
        apart: ApartPixels | None = None,
    ) -> int:
        """Write those images of a batch that are wanted.

        Args:
            column: The image column of a record batch: chunks, planes or both.
            row_numbers: Row number of each of its values, ascending.
            is_wanted: Which of them to write now, all of them rows to write; all such if None.
            apart: Its pixels, if they are not in it.

        Returns:
            How many images were written.

        Raises:
            ImageDataError: If the pixels of an image make no sense.
        """
        at = self._rows.searchsorted(row_numbers)
        if is_wanted is None:
            is_wanted = self._rows.searchsorted(row_numbers, "right") > at
        images = is_wanted.nonzero()[0]
        if not len(images):
            return 0
        offsets = self._offsets[at[images]]
        batch = self._batch(column, row_numbers, images, apart)
        batch.offsets[images] = offsets
        try:
            for name, dtype, some in self._alike(batch, row_numbers, images):
                self._write_images(batch, name, some, dtype)
        except PieceError as error:
            row = int(row_numbers[error.image])
            raise ImageDataError(f"{self._where}, row {row}: {error}.") from error
        return len(images)

    def _batch(
        self,
        column: pa.StructArray,
        row_numbers: Integers,
        images: Integers,
        apart: ApartPixels | None,
    ) -> "_Batch":
        shapes = np.zeros((len(column), 5), np.int64)
        shapes[images] = self._table.shapes[row_numbers[images]]
        return _Batch(column, apart, shapes, np.zeros(len(column), np.int64))

    def _alike(
        self, batch: "_Batch", row_numbers: Integers, images: Integers
    ) -> Iterator[tuple[str, np.dtype[np.generic], Integers]]:
        """Yield images that are stored in the same way and are of one pixel type."""
        codes = self._table.dtype_codes[row_numbers[images]]
        in_chunks = has_pieces(batch.column, "chunks")[images]
        for name, is_here in (("chunks", in_chunks), ("planes", ~in_chunks)):
            for code in sorted(set(codes[is_here].tolist())):
                yield name, self._table.dtypes[code], images[is_here & (codes == code)]

    def write_known(
        self,
        column: pa.StructArray,
        row_numbers: Integers,
        is_wanted: npt.NDArray[np.bool_],
        apart: ApartPixels,
    ) -> int:
        """Write images of a record batch that is kept, which are checked with their neighbours.

        Args:
            column: As of `write`; chunks or planes.
            row_numbers: Row number of each of its values, ascending.
            is_wanted: Which of them to write, all of them rows to write.
            apart: Its pixels.

        Returns:
            How many images were written: all, or 0 if some have to be looked at by `write`.
        """
        images = is_wanted.nonzero()[0]
        if apart.known is None or len(images) > BLOCK_ROWS:
            return 0
        offsets = self._offsets[self._rows.searchsorted(row_numbers[images])]
        found: list[tuple[ImageRuns, int]] = []
        for image in images.tolist():
            number, row = divmod(image, BLOCK_ROWS)
            key = number, self._channels
            if key not in apart.known:
                block = slice(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS)
                apart.known.put(key, self._find_runs(column[block], row_numbers[block], apart))
            runs = apart.known[key]
            if runs is None or not runs.has(row):
                return 0
            found.append((runs, row))
        for runs, row in found:
            runs.need(row, apart)
        for (runs, row), offset in zip(found, offsets.tolist(), strict=True):
            runs.write(row, apart, self._write, offset)
        return len(images)

    def _find_runs(
        self, column: pa.StructArray, row_numbers: Integers, apart: ApartPixels
    ) -> ImageRuns | None:
        """Return where the pixels of images are, and where in these they belong.

        Returns:
            None if they are not all made of runs of their own pixel type, or one is damaged.
        """
        images = self._table.has_image[row_numbers].nonzero()[0]
        batch = self._batch(column, row_numbers, images, apart)
        alike = list(self._alike(batch, row_numbers, images))
        if len(alike) != 1:
            return None
        name, dtype, images = alike[0]
        in_lists = self._layout.chunk_dtype if name == "chunks" else self._layout.plane_dtype
        try:
            pieces, stored, is_run = self._check(batch, name, images, dtype)
        except PieceError:  # named where its image is asked for
            return None
        are_bytes = stored.dtype is not None
        is_as_stored = (are_bytes or in_lists == dtype) and dtype.kind != "b"
        if stored.codecs or not is_as_stored or not is_run.all():
            return None
        # As if each image began where the ones before it would end, far behind: none is joined to others.
        batch.offsets[:] = np.arange(len(column)) << 48
        runs = self._join_runs(batch, pieces, np.arange(len(is_run)), stored, dtype)
        heads, tails = runs.ends
        image = pieces.image[runs.pieces[heads]]
        return ImageRuns(
            image.searchsorted(np.arange(len(column) + 1)),
            runs.to[heads] - batch.offsets[image],
            runs.stored.start[heads],
            runs.stored.stop[tails],
            dtype,
            are_bytes,
        )

    def _write_images(
        self, batch: "_Batch", name: str, images: Integers, dtype: np.dtype[np.generic]
    ) -> None:
        """Write images that are stored in the same way and are of one pixel type.

        Raises:
            PieceError: If their pieces or pixels make no sense.
        """
        pieces, stored, is_run = self._check(batch, name, images, dtype)
        stored.need()
        stored = stored.decompressed(pieces)
        runs = is_run.nonzero()[0]
        self._write_runs(batch, pieces, runs, stored, dtype)
        if len(runs) < len(is_run):
            for image in np.unique(pieces.image[~is_run]).tolist():
                self._write_tiled(batch, pieces, image, stored, dtype)

    def _check(
        self, batch: "_Batch", name: str, images: Integers, dtype: np.dtype[np.generic]
    ) -> tuple[Pieces, StoredPixels, npt.NDArray[np.bool_]]:
        """Return the pieces of images, where their pixels are stored, and which pieces are runs.

        Raises:
            PieceError: If there are no such pieces, or they do not fit their images.
        """
        if batch.column.type.get_field_index(name) < 0:
            raise PieceError(int(images[0]), f"it has no chunks, and the table no {name}")
        samples = self._layout.samples_per_pixel
        pieces = find_pieces(batch.column, name, images, batch.shapes, samples)
        if name == "chunks" and self._layout.has_byte_chunks:
            stored = byte_pixels(pieces, dtype, batch.apart)
        else:
            stored = list_pixels(pieces, batch.apart)
        return pieces, stored, check_cover(pieces, batch.shapes, images)

    def _join_runs(
        self,
        batch: "_Batch",
        pieces: Pieces,
        runs: Integers,
        stored: StoredPixels,
        dtype: np.dtype[np.generic],
    ) -> "_Runs":
        """Find where pieces that are one run of pixels go, and join those that follow on both sides.

        Args:
            batch: Their record batch.
            pieces: These and others.
            runs: Which of them are runs.
            stored: Pixels of all pieces.
            dtype: Of the images.
        """
        first = pieces.first[runs]
        if self._channels is not None and len(runs):
            whole, origin = pieces.whole[:, runs], pieces.origin[:, runs]
            new_channels = np.full(int(whole[1].max()), -1, np.int64)
            new_channels[list(self._channels)] = np.arange(len(self._channels))
            origin[1] = new_channels[origin[1]]
            whole[1] = len(self._channels)
            is_kept = origin[1] >= 0
            runs, first = runs[is_kept], first_pixels(origin[:, is_kept], whole[:, is_kept])
        image = pieces.image[runs]
        to = batch.offsets[image] + first * dtype.itemsize
        stored = replace(stored, start=stored.start[runs], stop=stored.stop[runs])
        ends = to + pieces.num_pixels[runs] * dtype.itemsize
        is_break = np.ones(len(runs), np.bool_)
        is_break[1:] = (to[1:] != ends[:-1]) | ~stored.follows_on()
        return _Runs(runs, to, stored, is_break)

    def _write_runs(
        self,
        batch: "_Batch",
        pieces: Pieces,
        runs: Integers,
        stored: StoredPixels,
        dtype: np.dtype[np.generic],
    ) -> None:
        """Write pieces that are one run of pixels."""
        joined = self._join_runs(batch, pieces, runs, stored, dtype)
        stored = joined.stored
        heads, tails = joined.ends
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
            to = int(joined.to[head])
            if stored.write(head, tail, dtype, self._write, to):
                continue
            values = stored.values(head, tail)
            misfit = _first_misfit(values, dtype)
            if misfit is not None:
                stops = stored.stop[head : tail + 1] - stored.start[head]
                at = np.searchsorted(stops, misfit, "right")
                _refuse_misfit(pieces, int(joined.pieces[head + at]), values[misfit], dtype)
            self._write(to, values.astype(dtype, copy=False))
            del values  # not to be held while the next are decompressed

    def _write_tiled(
        self,
        batch: "_Batch",
        pieces: Pieces,
        image: int,
        stored: StoredPixels,
        dtype: np.dtype[np.generic],
    ) -> None:
        """Put an image together from tiles, which are scattered over it row by row."""
        pixels = np.empty(batch.shapes[image], dtype)
        for at in np.flatnonzero(pieces.image == image).tolist():
            values = stored.values(at, at)
            misfit = _first_misfit(values, dtype)
            if misfit is not None:
                _refuse_misfit(pieces, at, values[misfit], dtype)
            pixels[box(pieces, at)] = values.reshape(pieces.size[2:, at])
        if self._channels is not None:
            pixels = pixels[:, list(self._channels)]
        self._write(int(batch.offsets[image]), np.ascontiguousarray(pixels))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Pieces that are one run of pixels each, and which of them follow on each other."""

    pieces: Integers
    """Position of each among all pieces."""
    to: Integers
    """Where its first byte goes."""
    stored: StoredPixels
    """Pixels of these alone."""
    is_break: npt.NDArray[np.bool_]
    """Which do not follow on the one before them."""

    @property
    def ends(self) -> tuple[Integers, Integers]:
        """The first and the last of those that are written together."""
        heads = self.is_break.nonzero()[0]
        return heads, np.append(heads[1:], len(self.pieces))[: len(heads)] - 1


@dataclass(frozen=True, slots=True)
class _Batch:
    """An image column and what is known of its images."""

    column: pa.StructArray
    apart: ApartPixels | None
    shapes: Integers
    """T, C, Z, Y, X of each image as stored."""
    offsets: Integers
    """Where the first byte of each image goes."""


def _first_misfit(values: npt.NDArray[np.generic], dtype: np.dtype[np.generic]) -> int | None:
    """Return the position of the first value that a type cannot hold."""
    if values.dtype == dtype:
        return None
    with np.errstate(all="ignore"):
        fits = values.astype(dtype) == values
    if values.dtype.kind == "f":
        fits |= np.isnan(values)
    return None if fits.all() else int(np.argmin(fits))


def _refuse_misfit(
    pieces: Pieces, at: int, value: np.generic, dtype: np.dtype[np.generic]
) -> None:
    raise PieceError(
        int(pieces.image[at]),
        f"a pixel has the value {value}, which {dtype.name} cannot hold, but pixels_meta.type "
        f"says that all can",
    )
