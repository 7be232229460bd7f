"""Checks what the tags of a TIFF file claim, before memory is taken for it."""

import importlib.util
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tifffile

from fastloader.errors import ImageDataError, MissingExtraError
from fastloader.sources._axis_names import AxisOrder

__all__ = [
    "LEAST_SEGMENT_BYTES",
    "MOST_SEGMENTS",
    "check_claimed_planes",
    "check_compression",
    "check_dtype",
    "check_pages",
    "check_raw",
    "check_read_at_once",
    "check_segments",
]

MOST_SEGMENTS = 256
LEAST_SEGMENT_BYTES = 4 << 10
"""Images of more strips or tiles, and of smaller ones, are parsed again when their pixels are read: to
note where each is would take memory."""
_PIXEL_KINDS = {"b": (1,), "u": (1, 2, 4, 8), "i": (1, 2, 4, 8), "f": (2, 4, 8)}
_PLANAR_CONFIGURATIONS = {1, 2}
"""Samples of a pixel side by side, or each in a plane of its own."""
_MOST_PLANES = 1 << 24
_LARGE_TILE = 1 << 24  # pixels
_MOST_PER_BYTE = {1: 1, 5: 4096, 8: 1040, 32946: 1040, 50013: 1040, 32773: 64}
"""Bytes that one stored byte can become: nothing, LZW, deflate (RFC 1951), PackBits."""
_MOST_PER_BYTE_OF_ANY = 1 << 17  # a Zstandard block repeats one byte 128 thousand times


def check_claimed_planes(file: tifffile.TiffFile, path: str) -> None:
    """Check what an OME header claims before memory is taken for so many planes.

    Raises:
        ImageDataError: If there are absurdly many.
    """
    for pixels in re.findall(r"<(?:\w+:)?Pixels\b[^>]*", file.ome_metadata or ""):
        num_planes = 1
        for size in re.findall(r"\bSize[TCZ]\s*=\s*[\"']\s*\+?(\d+)", pixels):
            num_planes *= int(size)
        if num_planes > _MOST_PLANES:
            raise ImageDataError(
                f"{path}: its OME header claims {num_planes} planes, but at most {_MOST_PLANES} "
                f"are possible."
            )


def check_dtype(series: tifffile.TiffPageSeries, path: str) -> np.dtype[Any]:
    """Return the pixel type, in the machine's own byte order.

    Raises:
        ImageDataError: If it is none that there can be here.
    """
    dtype: Any = series.dtype  # None for unknown types, which its annotation leaves out
    if dtype is None or dtype.itemsize not in _PIXEL_KINDS.get(dtype.kind, ()):
        raise ImageDataError(
            f"{path}: pixels are of type {dtype}, but expected integers of 8 to 64 bits, floats "
            f"of 16 to 64 or booleans."
        )
    # By kind and size: tifffile has other names for some, which torch does not know.
    return np.dtype(f"{dtype.kind}{dtype.itemsize}")


def check_pages(series: tifffile.TiffPageSeries, order: AxisOrder, path: str) -> list[Any]:
    """Return the pages of a series, which are all there.

    Raises:
        ImageDataError: If one is missing or the pages do not add up to the image.
    """
    pages: list[Any] = list(series)
    for number, page in enumerate(pages):
        if page is None:
            raise ImageDataError(
                f"{path}: plane {number} of {len(pages)} is missing: it may be in a file of the "
                f"same set that is not there, or at a URL, where files are not joined (then "
                f"join_files=False reads each by itself); or it was not written to its end."
            )
    num_pixels = sum(math.prod(page.shaped) for page in pages)
    if num_pixels != math.prod(order.shape):
        raise ImageDataError(
            f"{path}: its header says T, C, Z, Y, X = {order.shape}, but its {len(pages)} pages "
            f"have {num_pixels} pixels."
        )
    return pages


def check_compression(page: tifffile.TiffPage, path: str) -> None:
    """Check that the codec is there, which would show at the first pixels otherwise.

    Raises:
        ImageDataError: If there is no such codec.
        MissingExtraError: If it is one of imagecodecs, which is not installed.
    """
    decoders = (tifffile.TIFF.DECOMPRESSORS, tifffile.TIFF.UNPREDICTORS)
    tags = (page.compression, page.predictor)
    if all(tag in codecs for codecs, tag in zip(decoders, tags, strict=True)):
        return
    what = f"{path} is compressed by {_name(tags[0])} (predictor {_name(tags[1])})"
    if importlib.util.find_spec("imagecodecs") is not None:
        raise ImageDataError(f"{what}, which no decoder is known for.")
    raise MissingExtraError(f'{what}, which needs imagecodecs: pip install "fastloader[tiff]".')


def check_raw(
    offset: int, order: AxisOrder, dtype: np.dtype[Any], size_bytes: int, path: str
) -> None:
    """Check that pixels which lie there as they are are inside the file.

    Raises:
        ImageDataError: If not.
    """
    num_bytes = math.prod(order.shape) * dtype.itemsize
    if offset <= 0 or offset + num_bytes > size_bytes:
        raise ImageDataError(
            f"{path}: its header claims {num_bytes} bytes of pixels from byte {offset} on, but "
            f"the file has {size_bytes} bytes: it was cut off or is damaged."
        )


def check_segments(pages: list[Any], path: str) -> None:
    """Check that all strips or tiles are inside their files and can hold what they claim.

    One without position and length is left out: its pixels are of one value.

    Raises:
        ImageDataError: If not.
    """
    sizes: dict[int, int] = {}
    for number, page in enumerate(pages):
        file = page.parent.filehandle
        size_bytes = sizes.setdefault(id(file), file.size)
        kind = page.keyframe
        if kind.samplesperpixel > 1 and kind.planarconfig not in _PLANAR_CONFIGURATIONS:
            # tifffile takes it for planes, but counts the strips or tiles of one
            raise ImageDataError(
                f"{path}, page {number}: its planar configuration is {kind.planarconfig}, but "
                f"expected 1 or 2: the file is damaged."
            )
        expected = math.prod(page.chunked)
        offsets, counts = page.dataoffsets, page.databytecounts
        if len(offsets) != expected or len(counts) != expected:
            raise ImageDataError(
                f"{path}, page {number}: expected {expected} strips or tiles, but got "
                f"{len(offsets)} positions and {len(counts)} lengths."
            )
        for offset, count in zip(offsets, counts, strict=True):
            is_left_out = offset == count == 0
            if not is_left_out and (offset <= 0 or count <= 0 or offset + count > size_bytes):
                raise ImageDataError(
                    f"{path}, page {number}: {count} bytes of pixels from byte {offset} on are "
                    f"not in the file, which has {size_bytes}: it was cut off or is damaged."
                )
        _check_claimed_pixels(page.keyframe, counts, f"{path}, page {number}")


def check_read_at_once(pages: list[Any], path: str) -> None:
    """Check that pages which tifffile reads at once lie in one piece: it looks at the first only.

    Raises:
        ImageDataError: If one does not.
    """
    for number, page in enumerate(pages):
        if not page.keyframe.is_contiguous:
            continue
        ends = [sum(pair) for pair in zip(page.dataoffsets, page.databytecounts, strict=True)]
        is_scattered = page is not page.keyframe and list(page.dataoffsets[1:]) != ends[:-1]
        if is_scattered or not page.dataoffsets[0]:
            raise ImageDataError(
                f"{path}, page {number}: its strips are scattered or left out, which can be read "
                f"only of up to {MOST_SEGMENTS} strips, or of larger ones, in pages of one kind: write "
                f"the file anew."
            )


def _check_claimed_pixels(page: tifffile.TiffPage, counts: Sequence[int], where: str) -> None:
    """Refuse a page, strip or tile that is larger than its bytes can become.

    Raises:
        ImageDataError: If so.
    """
    bits: Any = page.bitspersample  # a tuple where samples differ, as in RGB565
    pixel_bytes = (max(bits) if isinstance(bits, tuple) else bits) / 8
    samples, depth, length, width, inner = page.shaped
    page_pixels = samples * depth * length * width * inner
    if page.is_tiled:
        sides = (page.tiledepth, page.tilelength, page.tilewidth)
        tile_pixels = sides[0] * sides[1] * sides[2] * inner
        if tile_pixels > max(_LARGE_TILE, 4 * page_pixels):
            raise ImageDataError(
                f"{where}: its tiles of {sides} pixels are far larger than the page of "
                f"{(depth, length, width)}."
            )
        inside = zip(sides, (depth, length, width), strict=True)
        segment_pixels = math.prod(min(pair) for pair in inside) * inner
    else:
        segment_pixels = min(page.rowsperstrip, length) * width * inner
    num_left_out = sum(not count for count in counts)
    if num_left_out and segment_pixels > _LARGE_TILE:
        raise ImageDataError(
            f"{where}: a strip or tile of {segment_pixels} pixels is left out, but expected at "
            f"most {_LARGE_TILE}: the file is damaged."
        )
    per_byte = _MOST_PER_BYTE.get(int(page.compression), _MOST_PER_BYTE_OF_ANY)
    for what, pixels, num_bytes in (
        ("the page", page_pixels - num_left_out * segment_pixels, sum(counts)),
        ("a strip or tile", segment_pixels if any(counts) else 0, max(counts)),
    ):
        if pixels * pixel_bytes > num_bytes * per_byte + 8:
            raise ImageDataError(
                f"{where}: {what} claims {pixels} pixels, but its {num_bytes} bytes "
                f"({_name(page.compression)}) cannot hold so many."
            )


def _name(tag: Any) -> str:
    return str(getattr(tag, "name", tag))
