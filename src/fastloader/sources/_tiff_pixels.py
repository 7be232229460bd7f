"""Pixels of TIFF files: read as they lie there, or strip by strip, into memory that is given."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.errors import FastLoaderError, ImageDataError, SourceError
from fastloader.sources._file_tree import FileTree, OpenFile
from fastloader.sources._tiff_layout import SegmentKind, TiffLayout, open_series

__all__ = ["read_pixels"]

Integers: TypeAlias = npt.NDArray[np.int64]

_DecodeSegment: TypeAlias = Callable[..., Any]

_MOST_DECODERS = 64
_decoders: dict[SegmentKind, _DecodeSegment] = {}
"""tifffile's own functions, which take as long to make as many a strip to decode. They hold no
open file."""


def read_pixels(
    tree: FileTree, inside: str, layout: TiffLayout, notes: Integers, out: npt.NDArray[Any]
) -> None:
    """Read one image in the order in which it is stored.

    Args:
        tree: What the TIFF file is in.
        inside: Its path there.
        layout: How its pixels lie in it.
        notes: What was noted of it, see `TiffLayout`.
        out: Written to, contiguous, as many elements as the image has, of its dtype.

    Raises:
        SourceError: If the file cannot be read or has changed.
        ImageDataError: If its pixels are damaged.
    """
    path = tree.path(inside)
    with _naming(path):
        with tree.opened(inside) as file:
            if file.stamp() != tuple(notes[:2].tolist()):
                raise SourceError(
                    f"{path} was changed since it was first looked at: make the dataset anew."
                )
            if layout.is_raw:
                file.read_into(int(notes[2]), out.reshape(-1).view(np.uint8).data)
                if layout.is_swapped:
                    out.byteswap(inplace=True)
                return
            if layout.segments is not None:
                decode = _decoders.get(layout.segments) or _make_decoder(tree, inside, layout)
                _read_segments(file, notes[2:], decode, layout.segments, out)
                return
        with open_series(tree, inside, layout.choice) as (_, series):
            pixels = series.asarray(out=out.reshape(series.shape), maxworkers=1)
            if pixels.size != out.size:
                raise ImageDataError(f"{path}: expected {out.size} pixels, got {pixels.size}.")


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say which file it is when its pixels cannot be had.

    Raises:
        FastLoaderError: If what runs inside raises it.
        SourceError: If the file is not there or cannot be opened or read.
        ImageDataError: If anything else goes wrong.
    """
    try:
        yield
    except FastLoaderError:
        raise
    except FileNotFoundError as error:
        raise SourceError(f"{path} is not there any more.") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error}).") from error
    except Exception as error:  # damage shows as any error that codecs can raise
        raise ImageDataError(
            f"{path}: its pixels cannot be decoded ({type(error).__name__}: {str(error)[:200]}): "
            f"the file is damaged."
        ) from error


def _read_segments(
    file: OpenFile,
    places: Integers,
    decode: _DecodeSegment,
    kind: SegmentKind,
    out: npt.NDArray[Any],
) -> None:
    pairs = places.reshape(-1, 2)
    is_stored = pairs[:, 1] > 0
    contents = file.read_each(pairs[is_stored].tolist())
    stored = iter(is_stored.tolist())
    fill = np.frombuffer(kind.fill, out.dtype)
    for page in out.reshape(kind.num_pages, *kind.shaped):
        for number in range(kind.num_segments):
            content = next(contents) if next(stored) else None
            pixels, (sample, depth, row, column, _), shape = decode(content, number)
            target = page[
                sample,
                depth : depth + shape[0],
                row : row + shape[1],
                column : column + shape[2],
            ]
            if pixels is None:  # was left out
                target[...] = fill
                continue
            sizes = target.shape
            inside = pixels[: sizes[0], : sizes[1], : sizes[2]]
            if inside.shape != sizes:  # would be spread over the rest otherwise
                raise ValueError(f"a strip or tile has {pixels.shape} pixels, not {sizes}")
            target[...] = inside


def _make_decoder(tree: FileTree, inside: str, layout: TiffLayout) -> _DecodeSegment:
    """Take the function from a file of this kind and keep it."""
    with open_series(tree, inside, layout.choice) as (_, series):
        decode: _DecodeSegment = series.keyframe.decode
    if len(_decoders) >= _MOST_DECODERS:
        _decoders.clear()
    assert layout.segments is not None  # noqa: S101 - the caller has looked
    _decoders[layout.segments] = decode
    return decode
