"""How the pixels of a TIFF file lie in it, taken from its tags."""

import html
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tifffile

from fastloader.errors import FastLoaderError, SourceError
from fastloader.sources._axis_names import AxisOrder, StackAxis
from fastloader.sources._compiled_kind import CompiledKind, CompiledWay
from fastloader.sources._file_tree import FileTree
from fastloader.sources._tiff_checks import (
    LEAST_SEGMENT_BYTES,
    MOST_SEGMENTS,
    check_claimed_planes,
    check_compression,
    check_dtype,
    check_pages,
    check_raw,
    check_read_at_once,
    check_segments,
)

__all__ = [
    "SegmentKind",
    "TiffChoice",
    "TiffFacts",
    "TiffLayout",
    "open_series",
    "read_layout",
]

_JPEG = {6, 7, 34892, 33007}
_DEFLATE = {8, 32946, 50013}
_LARGE_BYTES = 256 << 10
"""From strips and tiles of this size on, the Python around them costs less than libdeflate, which
imagecodecs has, saves."""
_HORIZONTAL = 2  # predictor


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
    numbers: tuple[int, ...] | None
    """See `fastloader.sources._compiled_kind.CompiledKind`; None where C cannot decode that."""
    fill: bytes
    """A pixel where a strip or tile is left out. As bytes, since NaN equals nothing."""


@dataclass(frozen=True, slots=True)
class TiffLayout:
    """What images of a folder have in common.

    Noted of each image are the size and time of the file, and then

    * position and length of its pixels, where they lie there as they are,
    * or position and length of each strip or tile, where `segments` says how to decode them;
      both are 0 for one that is left out,
    * or nothing, where the file must be parsed again.
    """

    order: AxisOrder
    dtype: np.dtype[Any]
    byte_order: str
    is_raw: bool
    segments: SegmentKind | None
    choice: TiffChoice
    piece_bytes: int
    """Pixels of a strip or tile; of the image where it is read as it lies there."""

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Sizes T, C, Z, Y, X."""
        return self.order.shape

    @property
    def compiled(self) -> CompiledKind:
        """How C reads the image, if it needs no more than zlib."""
        if not self.order.is_in_order:
            return CompiledKind()
        if self.is_raw and not self.is_swapped:
            return CompiledKind(CompiledWay.RAW)
        if self.is_raw:  # one strip of one row
            num_pixels = math.prod(self.shape)
            one_row = (1, 1, num_pixels, 1, 1, num_pixels, self.dtype.itemsize, 0, 0, 1, 0)
            return CompiledKind(CompiledWay.SEGMENTS, one_row)
        numbers = None if self.segments is None else self.segments.numbers
        return (
            CompiledKind() if numbers is None else CompiledKind(CompiledWay.SEGMENTS, numbers)
        )

    @property
    def is_swapped(self) -> bool:
        """True if the bytes of a pixel come in the order of other machines."""
        return _is_swapped(self.dtype, self.byte_order)


@contextmanager
def open_series(
    tree: FileTree, inside: str, choice: TiffChoice
) -> Iterator[tuple[tifffile.TiffFile, tifffile.TiffPageSeries]]:
    """Open a file and give the chosen series at the chosen level.

    Yields:
        The file, closed with the block, and the series.

    Raises:
        FastLoaderError: If the block raises it.
        SourceError: If it cannot be read, here or in the block, or has no such series or level.
    """
    path = tree.path(inside)
    try:
        with tifffile.TiffFile(tree.as_argument(inside), _multifile=choice.joins_files) as file:
            check_claimed_planes(file, path)
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
        dtype = check_dtype(series, path)
        offset = _raw_offset(series)
        pages = [series.keyframe] if offset is not None else check_pages(series, order, path)
        check_compression(pages[0].keyframe, path)
        stamp = tree.stamp(inside)
        notes = [*stamp]
        kind = None
        if offset is not None:
            check_raw(offset, order, dtype, stamp[0], path)
            notes += [offset, math.prod(order.shape) * dtype.itemsize]
            pieces: tuple[int, ...] = order.shape
        else:
            check_segments(pages, path)
            pieces = pages[0].keyframe.chunks
            kind = _segment_kind(file, series, pages, dtype)
            if kind is None:
                check_read_at_once(pages, path)
            else:
                for page in pages:
                    pairs = zip(page.dataoffsets, page.databytecounts, strict=True)
                    notes += [number for pair in pairs for number in pair]
        members = (
            {os.path.realpath(page.parent.filehandle.path) for page in pages}
            if tree.is_local and series.is_multifile
            else set()
        )
        facts = TiffFacts(_channel_names(file, choice.series), frozenset(members))
        return (
            TiffLayout(
                order,
                dtype,
                file.byteorder,
                offset is not None,
                kind,
                choice,
                math.prod(pieces) * dtype.itemsize,
            ),
            [int(number) for number in notes],
            facts,
        )


@dataclass(frozen=True, slots=True)
class TiffFacts:
    """What a file says beside its pixels."""

    channel_names: tuple[str | None, ...]
    members: frozenset[str]
    """Real paths of all files that the image is made of, if they are several."""


def _raw_offset(series: tifffile.TiffPageSeries) -> int | None:
    """Return where all pixels lie as they are; None if they do not, or the first are left out."""
    return None if series.is_multifile else series.dataoffset or None


def _segment_kind(
    file: tifffile.TiffFile,
    series: tifffile.TiffPageSeries,
    pages: list[Any],
    dtype: np.dtype[Any],
) -> SegmentKind | None:
    """Return how strips or tiles are decoded one by one; None where only tifffile knows."""
    page = pages[0].keyframe
    num_segments = len(page.dataoffsets)
    num_bytes = math.prod(page.shaped) * len(pages) * dtype.itemsize
    fill = _fill(page, dtype)
    is_plain = (
        not series.is_multifile
        and getattr(series, "transform", None) is None
        and page.compression not in _JPEG
        and not page.is_subsampled
        and num_segments * len(pages) <= max(MOST_SEGMENTS, num_bytes // LEAST_SEGMENT_BYTES)
        and all(
            other.keyframe.hash == page.hash
            and len(other.dataoffsets) == num_segments
            and _fill(other.keyframe, dtype) == fill
            for other in pages
        )
    )
    if not is_plain:
        return None
    names = (
        *("tiledepth", "tilelength", "tilewidth", "rowsperstrip", "imagelength", "imagewidth"),
        *("imagedepth", "compression", "predictor", "planarconfig", "samplesperpixel"),
        *("bitspersample", "sampleformat", "fillorder", "photometric", "extrasamples"),
    )
    values = (getattr(page, name) for name in names)
    key = (file.byteorder, page.is_tiled, *(_plain(value) for value in values))
    return SegmentKind(
        tuple(page.shaped),
        len(pages),
        num_segments,
        key,
        _segment_numbers(page, len(pages), dtype, file.byteorder),
        fill,
    )


def _segment_numbers(
    page: tifffile.TiffPage, num_pages: int, dtype: np.dtype[Any], byte_order: str
) -> tuple[int, ...] | None:
    """Return what `read_segments` is told, None where it cannot decode that."""
    samples, depth, rows, columns, inner = page.shaped
    is_predicted, is_deflated = page.predictor == _HORIZONTAL, page.compression in _DEFLATE
    is_known = (
        (is_deflated or page.compression == 1)
        and (page.predictor == 1 or (is_predicted and dtype.kind in "iu"))
        and dtype.kind in "iuf"
        and page.bitspersample == 8 * dtype.itemsize
        and page.fillorder == 1
        and depth == 1
        and (page.tiledepth if page.is_tiled else 1) == 1
    )
    piece_bytes = math.prod(page.chunks) * dtype.itemsize
    if not is_known or (is_deflated and piece_bytes >= _LARGE_BYTES and _has_libdeflate()):
        return None
    sides = (min(page.rowsperstrip, rows), columns)
    return (
        num_pages * samples,
        rows,
        columns,
        inner,
        *((page.tilelength, page.tilewidth) if page.is_tiled else sides),
        dtype.itemsize,
        is_deflated,
        is_predicted,
        _is_swapped(dtype, byte_order),
        page.is_tiled,
    )


@cache
def _has_libdeflate() -> bool:
    return importlib.util.find_spec("imagecodecs") is not None


def _is_swapped(dtype: np.dtype[Any], byte_order: str) -> bool:
    return dtype.itemsize > 1 and np.dtype(byte_order + "u2") != np.dtype("=u2")


def _fill(page: tifffile.TiffPage, dtype: np.dtype[Any]) -> bytes:
    return np.asarray(page.nodata).astype(dtype).tobytes()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(int(part) for part in value)
    return int(value)


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
