"""Pixels from Arrow's buffers into a block of memory, one copy, no Python object per pixel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.errors import ImageDataError
from fastloader.sources._arrow_buffers import (
    binary_bounds,
    list_bounds,
    number_values,
    text_codes,
    valid_mask,
)
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

__all__ = ["PixelWriter"]

Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Stored:
    """Pixels of some pieces: their content and where each piece lies in it."""

    content: npt.NDArray[np.generic] | ApartPixels
    """Numbers of lists, or bytes."""
    start: Integers
    stop: Integers
    dtype: np.dtype[np.generic] | None = None
    """Type of the pixels that are bytes."""

    def values(self, head: int, tail: int) -> npt.NDArray[np.generic]:
        """Return the pixels of pieces that follow on each other.

        Args:
            head: The first piece.
            tail: The last one.
        """
        values = self.content[int(self.start[head]) : int(self.stop[tail])]
        if self.dtype is None:
            return values
        if self.dtype.kind == "b":  # any other byte than 0 and 1 would be no valid bool
            values = (values != 0).view(np.uint8)
        return values.view(self.dtype)

    def write(
        self, head: int, tail: int, dtype: np.dtype[np.generic], write: WritePixels, to: int
    ) -> bool:
        """Write the pixels of pieces that follow on each other, if they need not be looked at.

        Args:
            head: The first piece.
            tail: The last one.
            dtype: Of the image.
            write: Puts pixels in their place.
            to: Position of the first byte there.

        Returns:
            False if nothing was written.
        """
        if not isinstance(self.content, ApartPixels) or dtype.kind == "b":
            return False
        items = slice(int(self.start[head]), int(self.stop[tail]))
        return self.content.write(items, dtype, write, to, are_bytes=self.dtype is not None)

    def follows_on(self) -> npt.NDArray[np.bool_]:
        """Return which pieces, but for the first, start where the one before them stops."""
        follows = self.start[1:] == self.stop[:-1]
        if isinstance(self.content, ApartPixels):
            batch = np.searchsorted(self.content.starts, self.start, "right")
            follows &= batch[1:] == batch[:-1]
        return np.asarray(follows)


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
        self._channels = None if channels is None else list(channels)
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
        at = np.searchsorted(self._rows, row_numbers)
        if is_wanted is None:
            is_wanted = np.searchsorted(self._rows, row_numbers, "right") > at
        images = np.flatnonzero(is_wanted)
        if not len(images):
            return 0
        rows, offsets = self._rows[at[images]], self._offsets[at[images]]
        batch = _Batch(
            column=column,
            apart=apart,
            shapes=np.zeros((len(column), 5), np.int64),
            offsets=np.zeros(len(column), np.int64),
        )
        batch.shapes[images] = self._table.shapes[rows]
        batch.offsets[images] = offsets
        codes = self._table.dtype_codes[rows]
        in_chunks = has_pieces(column, "chunks")[images]
        try:
            for name, is_here in (("chunks", in_chunks), ("planes", ~in_chunks)):
                for code in sorted(set(codes[is_here].tolist())):
                    some = images[is_here & (codes == code)]
                    self._write_images(batch, name, some, self._table.dtypes[code])
        except PieceError as error:
            row = int(row_numbers[error.image])
            raise ImageDataError(f"{self._where}, row {row}: {error}.") from error
        return len(rows)

    def _write_images(
        self, batch: "_Batch", name: str, images: Integers, dtype: np.dtype[np.generic]
    ) -> None:
        """Write images that are stored in the same way and are of one pixel type.

        Raises:
            PieceError: If there are no such pieces.
        """
        if batch.column.type.get_field_index(name) < 0:
            raise PieceError(int(images[0]), f"it has no chunks, and the table no {name}")
        samples = self._layout.samples_per_pixel
        pieces = find_pieces(batch.column, name, images, batch.shapes, samples)
        if name == "chunks" and self._layout.has_byte_chunks:
            stored = _byte_pixels(pieces, dtype, batch.apart)
        else:
            stored = _list_pixels(pieces, batch.apart)
        is_run = check_cover(pieces, batch.shapes, images)
        runs = np.flatnonzero(is_run)
        self._write_runs(batch, pieces, runs, stored, dtype)
        if len(runs) < len(is_run):
            for image in np.unique(pieces.image[~is_run]).tolist():
                self._write_tiled(batch, pieces, image, stored, dtype)

    def _write_runs(
        self,
        batch: "_Batch",
        pieces: Pieces,
        runs: Integers,
        stored: _Stored,
        dtype: np.dtype[np.generic],
    ) -> None:
        """Write pieces that are one run of pixels, joining those that follow on both sides."""
        first = pieces.first[runs]
        if self._channels is not None and len(runs):
            whole, origin = pieces.whole[:, runs], pieces.origin[:, runs]
            new_channels = np.full(int(whole[1].max()), -1, np.int64)
            new_channels[self._channels] = np.arange(len(self._channels))
            origin[1] = new_channels[origin[1]]
            whole[1] = len(self._channels)
            is_kept = origin[1] >= 0
            runs, first = runs[is_kept], first_pixels(origin[:, is_kept], whole[:, is_kept])
        if not len(runs):
            return
        to = batch.offsets[pieces.image[runs]] + first * dtype.itemsize
        stored = replace(stored, start=stored.start[runs], stop=stored.stop[runs])
        ends = to + pieces.num_pixels[runs] * dtype.itemsize
        is_break = np.ones(len(runs), np.bool_)
        is_break[1:] = (to[1:] != ends[:-1]) | ~stored.follows_on()
        heads = np.flatnonzero(is_break)
        tails = np.append(heads[1:], len(runs)) - 1
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
            if stored.write(head, tail, dtype, self._write, int(to[head])):
                continue
            values = stored.values(head, tail)
            misfit = _first_misfit(values, dtype)
            if misfit is not None:
                stops = stored.stop[head : tail + 1] - stored.start[head]
                at = np.searchsorted(stops, misfit, "right")
                _refuse_misfit(pieces, int(runs[head + at]), values[misfit], dtype)
            self._write(int(to[head]), values.astype(dtype, copy=False))
            del values  # not to be held while the next are decompressed

    def _write_tiled(
        self,
        batch: "_Batch",
        pieces: Pieces,
        image: int,
        stored: _Stored,
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
            pixels = pixels[:, self._channels]
        self._write(int(batch.offsets[image]), np.ascontiguousarray(pixels))


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


def _list_pixels(pieces: Pieces, apart: ApartPixels | None) -> _Stored:
    start, stop, values = list_bounds(pieces.structs.field("pixels"))
    start, stop = start[pieces.struct], stop[pieces.struct]
    _check_counts(pieces, stop - start, pieces.num_pixels, "pixels")
    if apart is not None:
        apart.need(start, stop)
        return _Stored(apart, start, stop)
    if values.null_count:
        nulls_before = np.concatenate([[0], np.cumsum(~valid_mask(values))])
        has_null = nulls_before[stop] > nulls_before[start]
        if has_null.any():
            raise PieceError(
                int(pieces.image[np.argmax(has_null)]), "some of its pixels are null"
            )
    if not len(start):
        return _Stored(np.zeros(0, np.uint8), start, stop)
    return _Stored(number_values(values), start, stop)


def _byte_pixels(
    pieces: Pieces, dtype: np.dtype[np.generic], apart: ApartPixels | None
) -> _Stored:
    """Return the pixels of chunks that are bytes, decompressed where needed.

    Raises:
        PieceError: If a chunk is of another type or length.
    """
    codes, names = text_codes(pieces.structs.field("dtype"))
    is_dtype = np.array([name == dtype.name for name in names] + [False])[codes[pieces.struct]]
    if not is_dtype.all():
        raise PieceError(
            int(pieces.image[np.argmin(is_dtype)]),
            f"its chunks are not all of the dtype {dtype.name}, which its first chunk or "
            f"pixels_meta.type states",
        )
    content: npt.NDArray[np.uint8] | ApartPixels
    if apart is None:
        start, stop, content = binary_bounds(pieces.structs.field("pixel_bytes"))
    else:
        start, stop, _ = list_bounds(pieces.structs.field("pixel_bytes"))
        content = apart
    start, stop = start[pieces.struct], stop[pieces.struct]
    if apart is not None:
        apart.need(start, stop)
    codecs = _codecs(pieces)
    if any(codecs):
        content, start, stop = _decompressed(
            pieces, content, start, stop, codecs, dtype.itemsize
        )
    _check_counts(pieces, stop - start, pieces.num_pixels * dtype.itemsize, "bytes")
    return _Stored(content, start, stop, dtype)


def _codecs(pieces: Pieces) -> list[str | None]:
    """Return the name of each piece's compression, None without."""
    if pieces.structs.type.get_field_index("compression") < 0:
        return []
    codes, names = text_codes(pieces.structs.field("compression"))
    plain = [None if name in {"", "none"} else name for name in names]
    return [None if code < 0 else plain[code] for code in codes[pieces.struct].tolist()]


def _decompressed(
    pieces: Pieces,
    content: npt.NDArray[np.uint8] | ApartPixels,
    start: Integers,
    stop: Integers,
    codecs: list[str | None],
    item_size: int,
) -> tuple[npt.NDArray[np.uint8], Integers, Integers]:
    """Return the bytes of all pieces in a row, decompressed, and where each starts and stops.

    Raises:
        PieceError: If a chunk cannot be decompressed.
    """
    parts = []
    sizes = (pieces.num_pixels * item_size).tolist()
    for at, (codec, num_bytes) in enumerate(zip(codecs, sizes, strict=True)):
        part = content[int(start[at]) : int(stop[at])]
        if codec is not None:
            try:
                part = np.frombuffer(
                    pa.Codec(codec).decompress(pa.py_buffer(part), num_bytes), np.uint8
                )
            except (pa.ArrowException, OSError, ValueError) as error:
                raise PieceError(
                    int(pieces.image[at]),
                    f"a chunk cannot be decompressed by {codec} ({error})",
                ) from error
        parts.append(part)
    ends = np.cumsum([len(part) for part in parts])
    return np.concatenate(parts), ends - [len(part) for part in parts], ends


def _check_counts(pieces: Pieces, found: Integers, expected: Integers, unit: str) -> None:
    wrong = found != expected
    if not wrong.any():
        return
    at = int(np.argmax(wrong))
    hint = ""
    if found[at] == 3 * expected[at]:
        hint = (
            " (three times as many looks like interleaved RGB, which size_c does not say: "
            "rgb='interleaved' reads it)"
        )
    raise PieceError(
        int(pieces.image[at]),
        f"expected {int(expected[at])} {unit} in one of its chunks or planes by its size, but "
        f"got {int(found[at])}{hint}",
    )
