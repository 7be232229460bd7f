"""Pixels of TIFF files: read as they lie there, or strip by strip, into memory that is given."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.errors import FastLoaderError, ImageDataError, SourceError
from fastloader.sources._tiff_layout import SegmentKind, TiffLayout, open_series

__all__ = ["read_pixels"]

Integers: TypeAlias = npt.NDArray[np.int64]

_DecodeSegment: TypeAlias = Callable[..., Any]

_MOST_DECODERS = 64
_decoders: dict[SegmentKind, _DecodeSegment] = {}
"""tifffile's own functions, which take as long to make as many a strip to decode. They hold no
open file."""


def read_pixels(path: str, layout: TiffLayout, notes: Integers, out: npt.NDArray[Any]) -> None:
    """Read one image in the order in which it is stored.

    Args:
        path: A TIFF file.
        layout: How its pixels lie in it.
        notes: What was noted of it, see `TiffLayout`.
        out: Written to, contiguous, as many elements as the image has, of its dtype.

    Raises:
        SourceError: If the file cannot be read or has changed.
        ImageDataError: If its pixels are damaged.
    """
    with _naming(path):
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path takes time to make
            descriptor = file.fileno()
            state = os.fstat(descriptor)
            if (state.st_size, state.st_mtime_ns) != tuple(notes[:2].tolist()):
                raise SourceError(
                    f"{path} was changed since it was first looked at: make the dataset anew."
                )
            if layout.is_raw:
                _read_raw(descriptor, int(notes[2]), layout, out)
                return
            if layout.segments is not None:
                segments = notes[2:].reshape(layout.segments.num_pages, -1, 2)
                _read_segments(descriptor, segments, path, layout, out)
                return
        with open_series(path, layout.choice) as (_, series):
            pixels = series.asarray(out=out.reshape(series.shape), maxworkers=1)
            if pixels.size != out.size:
                raise ImageDataError(f"{path}: expected {out.size} pixels, got {pixels.size}.")


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say which file it is when its pixels cannot be had.

    Raises:
        FastLoaderError: If what runs inside raises it.
        SourceError: If the file is not there.
        ImageDataError: If anything else goes wrong.
    """
    try:
        yield
    except FastLoaderError:
        raise
    except FileNotFoundError as error:
        raise SourceError(f"{path} is not there any more.") from error
    except Exception as error:  # damage shows as any error that codecs can raise
        raise ImageDataError(
            f"{path}: its pixels cannot be decoded ({type(error).__name__}: {str(error)[:200]}): "
            f"the file is damaged."
        ) from error


def _read_raw(descriptor: int, offset: int, layout: TiffLayout, out: npt.NDArray[Any]) -> None:
    target = out.reshape(-1).view(np.uint8).data
    while target:
        count = os.preadv(descriptor, [target], offset)
        if not count:
            raise EOFError("the file ends within the pixels")
        target, offset = target[count:], offset + count
    if out.dtype.itemsize > 1 and np.dtype(layout.byte_order + "u2") != np.dtype("=u2"):
        out.byteswap(inplace=True)


def _read_segments(
    descriptor: int,
    segments: npt.NDArray[np.int64],
    path: str,
    layout: TiffLayout,
    out: npt.NDArray[Any],
) -> None:
    kind = layout.segments
    assert kind is not None  # noqa: S101 - the caller has looked
    decode = _decoders.get(kind) or _make_decoder(path, layout, kind)
    pages = out.reshape(kind.num_pages, *kind.shaped)
    for page, places in zip(pages, segments.tolist(), strict=True):
        for number, (offset, count) in enumerate(places):
            content = os.pread(descriptor, count, offset)
            pixels, (sample, depth, row, column, _), _ = decode(content, number)
            target = page[
                sample,
                depth : depth + pixels.shape[0],
                row : row + pixels.shape[1],
                column : column + pixels.shape[2],
            ]
            sizes = target.shape
            inside = pixels[: sizes[0], : sizes[1], : sizes[2]]
            if inside.shape != sizes:  # would be spread over the rest otherwise
                raise ValueError(f"a strip or tile has {pixels.shape} pixels, not {sizes}")
            target[...] = inside


def _make_decoder(path: str, layout: TiffLayout, kind: SegmentKind) -> _DecodeSegment:
    """Take the function from a file of this kind and keep it."""
    with open_series(path, layout.choice) as (_, series):
        decode: _DecodeSegment = series.keyframe.decode
    if len(_decoders) >= _MOST_DECODERS:
        _decoders.clear()
    _decoders[kind] = decode
    return decode
