"""Pixels of chunks and planes where they are stored, checked by their number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import (
    binary_bounds,
    list_bounds,
    number_values,
    text_codes,
    valid_mask,
)
from fastloader.sources._ome_arrow_pieces import PieceError, Pieces
from fastloader.sources._pixels_apart import ApartPixels
from fastloader.sources._protocol import WritePixels

__all__ = ["StoredPixels", "byte_pixels", "list_pixels"]

Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredPixels:
    """Pixels of some pieces: their content and where each piece lies in it."""

    content: npt.NDArray[np.generic] | ApartPixels
    """Numbers of lists, or bytes."""
    start: Integers
    stop: Integers
    dtype: np.dtype[np.generic] | None = None
    """Type of the pixels that are bytes."""
    codecs: Sequence[str | None] = ()
    """Name of each piece's compression, None without; empty if none is compressed."""

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

    def need(self) -> None:
        """Tell which pixels will be taken, if they are still to be brought to memory."""
        if isinstance(self.content, ApartPixels):
            self.content.need(self.start, self.stop)

    def decompressed(self, pieces: Pieces) -> "StoredPixels":
        """Return the same, none of them compressed any more.

        Args:
            pieces: What they are of.

        Raises:
            PieceError: If a chunk cannot be decompressed, or is of another length.
        """
        if not self.codecs or self.dtype is None:
            return self
        item_size = self.dtype.itemsize
        content, start, stop = _decompressed(
            pieces, self.content, self.start, self.stop, self.codecs, item_size
        )
        _check_counts(pieces, stop - start, pieces.num_pixels * item_size, "bytes")
        return replace(self, content=content, start=start, stop=stop, codecs=())


def list_pixels(pieces: Pieces, apart: ApartPixels | None) -> StoredPixels:
    """Return the pixels of pieces that are lists of numbers.

    Args:
        pieces: Chunks or planes.
        apart: Their pixels, if they are not in them.

    Raises:
        PieceError: If there are not as many as the size says, or some are null.
    """
    start, stop, values = list_bounds(pieces.structs.field("pixels"))
    start, stop = start[pieces.struct], stop[pieces.struct]
    _check_counts(pieces, stop - start, pieces.num_pixels, "pixels")
    if apart is not None:
        return StoredPixels(apart, start, stop)
    if values.null_count:
        nulls_before = np.concatenate([[0], np.cumsum(~valid_mask(values))])
        has_null = nulls_before[stop] > nulls_before[start]
        if has_null.any():
            raise PieceError(
                int(pieces.image[np.argmax(has_null)]), "some of its pixels are null"
            )
    if not len(start):
        return StoredPixels(np.zeros(0, np.uint8), start, stop)
    return StoredPixels(number_values(values), start, stop)


def byte_pixels(
    pieces: Pieces, dtype: np.dtype[np.generic], apart: ApartPixels | None
) -> StoredPixels:
    """Return the pixels of chunks that are bytes, which may be compressed.

    Args:
        pieces: Chunks.
        dtype: Of the images.
        apart: Their pixels, if they are not in them.

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
    codecs = _codecs(pieces)
    if any(codecs):
        return StoredPixels(content, start, stop, dtype, codecs)
    _check_counts(pieces, stop - start, pieces.num_pixels * dtype.itemsize, "bytes")
    return StoredPixels(content, start, stop, dtype)


def _codecs(pieces: Pieces) -> list[str | None]:
    """Return the name of each piece's compression, None without."""
    if pieces.structs.type.get_field_index("compression") < 0:
        return []
    codes, names = text_codes(pieces.structs.field("compression"))
    plain = [None if name in {"", "none"} else name for name in names]
    return [None if code < 0 else plain[code] for code in codes[pieces.struct].tolist()]


def _decompressed(
    pieces: Pieces,
    content: npt.NDArray[np.generic] | ApartPixels,
    start: Integers,
    stop: Integers,
    codecs: Sequence[str | None],
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
