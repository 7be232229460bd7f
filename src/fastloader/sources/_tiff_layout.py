"""How the pixels of a TIFF file lie in it, taken from its tags and checked against its size."""

import html
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tifffile

from fastloader.errors import FastLoaderError, ImageDataError, MissingExtraError, SourceError
from fastloader.sources._axis_names import AxisOrder, StackAxis
from fastloader.sources._file_tree import FileTree

__all__ = [
    "SegmentKind",
    "TiffChoice",
    "TiffFacts",
    "TiffLayout",
    "open_series",
    "read_layout",
]

_PIXEL_KINDS = {"b": (1,), "u": (1, 2, 4, 8), "i": (1, 2, 4, 8), "f": (2, 4, 8)}
_JPEG = {6, 7, 34892, 33007}
_MOST_SEGMENTS = 256
"""Files of more are parsed again when their pixels are read, which their size outweighs."""
_MOST_PLANES = 1 << 24
_LARGE_TILE = 1 << 24  # pixels
_MOST_PER_BYTE = {1: 1, 5: 4096, 8: 1040, 32946: 1040, 50013: 1040, 32773: 64}
"""Bytes that one stored byte can become: nothing, LZW, deflate (RFC 1951), PackBits."""
_MOST_PER_BYTE_OF_ANY = 1 << 17  # a Zstandard block repeats one byte 128 thousand times


@dataclass(frozen=True, slots=True)
class TiffChoice:
    """Which image of a file is meant, and how."""

    series: int = 0
    level: int = 0
    stack_axis: StackAxis | None = None
    joins_files: bool = True


@dataclass(frozen=True, slots=True)
class SegmentKind:
    """What decoding a strip or tile depends on, beside its bytes."""

    shaped: tuple[int, ...]
    """Size of a page: samples, depth, length, width, samples of a pixel."""
    num_pages: int
    num_segments: int
    """Of each page."""
    key: tuple[Any, ...]
    """Tags; two pages of equal keys are decoded by the same function."""


@dataclass(frozen=True, slots=True)
class TiffLayout:
    """What images of a folder have in common.

    Noted of each image are the size and time of the file, and then

    * the position of its pixels, where they lie there as they are,
    * or position and length of each strip or tile, where `segments` says how to decode them,
    * or nothing, where the file must be parsed again.
    """

    order: AxisOrder
    dtype: np.dtype[Any]
    byte_order: str
    is_raw: bool
    segments: SegmentKind | None
    choice: TiffChoice

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Sizes T, C, Z, Y, X."""
        return self.order.shape


@contextmanager
def open_series(
    tree: FileTree, inside: str, choice: TiffChoice
) -> Iterator[tuple[tifffile.TiffFile, tifffile.TiffPageSeries]]:
    """Open a file and give the chosen series at the chosen level.

    Args:
        tree: What the TIFF file is in.
        inside: Its path there.
        choice: Which image of it.

    Yields:
        The file, closed with the block, and the series.

    Raises:
        FastLoaderError: If the block raises it.
        SourceError: If it cannot be read, here or in the block, or has no such series or level.
    """
    path = tree.path(inside)
    try:
        with tifffile.TiffFile(tree.as_argument(inside), _multifile=choice.joins_files) as file:
            _check_claimed_planes(file, path)
            yield file, _choose_series(file, choice, path)
    except FastLoaderError:
        raise
    except FileNotFoundError as error:
        raise SourceError(f"{path} is not there.") from error
    except Exception as error:  # damage shows as any error that indexing and codecs can raise
        raise SourceError(
            f"{path} cannot be read as TIFF ({type(error).__name__}: {str(error)[:200]}): check "
            f"that it is complete."
        ) from error


def _choose_series(
    file: tifffile.TiffFile, choice: TiffChoice, path: str
) -> tifffile.TiffPageSeries:
    number = len(file.series)
    if not -number <= choice.series < number:
        raise SourceError(f"{path} has {number} series, but not series={choice.series}.")
    series = file.series[choice.series]
    if not -len(series.levels) <= choice.level < len(series.levels):
        raise SourceError(
            f"{path} has levels 0 to {len(series.levels) - 1} of resolution, but not "
            f"level={choice.level}."
        )
    return series.levels[choice.level]


def read_layout(
    tree: FileTree, inside: str, choice: TiffChoice
) -> tuple[TiffLayout, list[int], "TiffFacts"]:
    """Look at a file without reading its pixels.

    Args:
        tree: What the TIFF file is in.
        inside: Its path there.
        choice: Which image of it.

    Returns:
        Its layout, what is noted of it, and what else is to be known.

    Raises:
        SourceError: If it cannot be read.
        ImageDataError: If it is damaged, or its pixels are of no known type.
        MissingExtraError: If its compression needs a package that is not there.
    """
    path = tree.path(inside)
    with open_series(tree, inside, choice) as (file, series):
        order = AxisOrder.of(series.axes, series.shape, path, choice.stack_axis)
        dtype = _check_dtype(series, path)
        pages = _check_pages(series, order, path)
        _check_compression(pages[0].keyframe, path)
        stamp = tree.stamp(inside)
        notes = [*stamp]
        offset = None if series.is_multifile else series.dataoffset
        kind = None
        if offset is not None:
            _check_raw(offset, order, dtype, stamp[0], path)
            notes.append(offset)
        else:
            _check_segments(pages, path)
            kind = _segment_kind(file, series, pages)
            if kind is not None:
                for page in pages:
                    pairs = zip(page.dataoffsets, page.databytecounts, strict=True)
                    notes += [number for pair in pairs for number in pair]
        members = (
            {os.path.realpath(page.parent.filehandle.path) for page in pages}
            if tree.is_local
            else set()
        )
        facts = TiffFacts(_channel_names(file, choice.series), frozenset(members))
        return (
            TiffLayout(order, dtype, file.byteorder, offset is not None, kind, choice),
            [int(number) for number in notes],
            facts,
        )


@dataclass(frozen=True, slots=True)
class TiffFacts:
    """What a file says beside its pixels."""

    channel_names: tuple[str | None, ...]
    members: frozenset[str]
    """Real paths of all files that the image is made of."""


def _check_claimed_planes(file: tifffile.TiffFile, path: str) -> None:
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


def _check_dtype(series: tifffile.TiffPageSeries, path: str) -> np.dtype[Any]:
    dtype: Any = series.dtype  # None for unknown types, which its annotation leaves out
    if dtype is None or dtype.itemsize not in _PIXEL_KINDS.get(dtype.kind, ()):
        raise ImageDataError(
            f"{path}: pixels are of type {dtype}, but expected integers of 8 to 64 bits, floats "
            f"of 16 to 64 or booleans."
        )
    # By kind and size: tifffile has other names for some, which torch does not know.
    return np.dtype(f"{dtype.kind}{dtype.itemsize}")


def _check_pages(series: tifffile.TiffPageSeries, order: AxisOrder, path: str) -> list[Any]:
    """Return the pages of a series, which are all there.

    Raises:
        ImageDataError: If one is missing or the pages do not add up to the image.
    """
    if series.dataoffset is not None and not series.is_multifile:
        return [series.keyframe]
    pages: list[Any] = list(series)
    for number, page in enumerate(pages):
        if page is None:
            raise ImageDataError(
                f"{path}: plane {number} of {len(pages)} is missing: it may be in a file of the "
                f"same set that is not there, or at a URL, where files are not joined (then "
                f"join_files=False reads each by itself); or it was not written to its end."
            )
    num_pixels = sum(int(np.prod(page.shaped, dtype=object)) for page in pages)
    if num_pixels != int(np.prod(order.shape, dtype=object)):
        raise ImageDataError(
            f"{path}: its header says T, C, Z, Y, X = {order.shape}, but its {len(pages)} pages "
            f"have {num_pixels} pixels."
        )
    return pages


def _check_compression(page: tifffile.TiffPage, path: str) -> None:
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


def _name(tag: Any) -> str:
    return str(getattr(tag, "name", tag))


def _check_raw(
    offset: int, order: AxisOrder, dtype: np.dtype[Any], size_bytes: int, path: str
) -> None:
    num_bytes = int(np.prod(order.shape, dtype=object)) * dtype.itemsize
    if offset <= 0 or offset + num_bytes > size_bytes:
        raise ImageDataError(
            f"{path}: its header claims {num_bytes} bytes of pixels from byte {offset} on, but "
            f"the file has {size_bytes} bytes: it was cut off or is damaged."
        )


def _check_segments(pages: list[Any], path: str) -> None:
    """Check that all strips or tiles are inside their files and can hold what they claim.

    Raises:
        ImageDataError: If not.
    """
    sizes: dict[int, int] = {}
    for number, page in enumerate(pages):
        file = page.parent.filehandle
        size_bytes = sizes.setdefault(id(file), file.size)
        expected = int(np.prod(page.chunked, dtype=object))
        offsets, counts = page.dataoffsets, page.databytecounts
        if len(offsets) != expected or len(counts) != expected:
            raise ImageDataError(
                f"{path}, page {number}: expected {expected} strips or tiles, but got "
                f"{len(offsets)} positions and {len(counts)} lengths."
            )
        for offset, count in zip(offsets, counts, strict=True):
            if offset <= 0 or count <= 0 or offset + count > size_bytes:
                raise ImageDataError(
                    f"{path}, page {number}: {count} bytes of pixels from byte {offset} on are "
                    f"not in the file, which has {size_bytes}: it was cut off, is damaged or "
                    f"leaves parts out."
                )
        _check_claimed_pixels(page.keyframe, max(counts), sum(counts), f"{path}, page {number}")


def _check_claimed_pixels(
    page: tifffile.TiffPage, most_bytes: int, all_bytes: int, where: str
) -> None:
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
        segment_pixels = int(np.prod([min(pair) for pair in inside], dtype=object)) * inner
    else:
        segment_pixels = min(page.rowsperstrip, length) * width * inner
    per_byte = _MOST_PER_BYTE.get(int(page.compression), _MOST_PER_BYTE_OF_ANY)
    for what, pixels, num_bytes in (
        ("the page", page_pixels, all_bytes),
        ("a strip or tile", segment_pixels, most_bytes),
    ):
        if pixels * pixel_bytes > num_bytes * per_byte + 8:
            raise ImageDataError(
                f"{where}: {what} claims {pixels} pixels, but its {num_bytes} bytes "
                f"({_name(page.compression)}) cannot hold so many."
            )


def _segment_kind(
    file: tifffile.TiffFile, series: tifffile.TiffPageSeries, pages: list[Any]
) -> SegmentKind | None:
    """Return how strips or tiles are decoded one by one; None where only tifffile knows."""
    page = pages[0].keyframe
    num_segments = len(page.dataoffsets)
    is_plain = (
        not series.is_multifile
        and getattr(series, "transform", None) is None
        and page.compression not in _JPEG
        and not page.is_subsampled
        and num_segments * len(pages) <= _MOST_SEGMENTS
        and all(
            other.keyframe.hash == page.hash and len(other.dataoffsets) == num_segments
            for other in pages
        )
    )
    if not is_plain:
        return None
    names = (
        *("tiledepth", "tilelength", "tilewidth", "rowsperstrip", "imagelength", "imagewidth"),
        *("imagedepth", "compression", "predictor", "planarconfig", "samplesperpixel"),
        *(
            "bitspersample",
            "sampleformat",
            "fillorder",
            "photometric",
            "extrasamples",
            "nodata",
        ),
    )
    values = (getattr(page, name) for name in names)
    key = (file.byteorder, page.is_tiled, *(_plain(value) for value in values))
    return SegmentKind(tuple(page.shaped), len(pages), num_segments, key)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(int(part) for part in value)
    return value if isinstance(value, float) else int(value)


def _channel_names(file: tifffile.TiffFile, series: int) -> tuple[str | None, ...]:
    """Return the names of the channels in an OME header, None for a channel without."""
    images = re.findall(
        r"<(?:\w+:)?Pixels\b.*?</(?:\w+:)?Pixels>", file.ome_metadata or "", re.DOTALL
    )
    if not -len(images) <= series < len(images):
        return ()
    channels = re.findall(r"<(?:\w+:)?Channel\b[^>]*", images[series])
    names = (re.search(r"\bName\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", text) for text in channels)
    return tuple(
        None if name is None else html.unescape(name[1] if name[1] is not None else name[2])
        for name in names
    )
