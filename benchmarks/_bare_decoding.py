"""Single images decoded from bytes in memory: what a way without a cache cannot leave out."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tifffile

from _data import Images
from _harness import CannotRun
from _tracks import read_pixels

__all__ = ["bare_decoder"]

Decode: TypeAlias = Callable[[int], npt.NDArray[Any]]


def bare_decoder(images: Images, num_images: int) -> Decode:
    """Return what decodes one of the first images.

    Of TIFF and OME-Zarr it is the images' own bytes. Parquet compresses pages of several images,
    so the bytes are those of one image compressed alone, by the codec of the file.

    Args:
        images: Which.
        num_images: How many of the first ones to hold.

    Raises:
        CannotRun: If the format or its library has no decoder for that.
    """
    if images.format_name not in _DECODERS:
        raise CannotRun("nothing of a single image can be decoded alone.")
    return _DECODERS[images.format_name](images, num_images)


def _paths(images: Images, num_images: int) -> list[Path]:
    return sorted(images.path.glob("*/*"))[:num_images]


def _of_tiff(images: Images, num_images: int) -> Decode:
    held = []
    for path in _paths(images, num_images):
        with tifffile.TiffFile(path) as file:
            pages: Any = file.series[0].pages
            keyframe: Any = file.pages.first
            segments = [
                file.filehandle.read_array(np.uint8, count, offset=offset).tobytes()
                for page in pages
                for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True)
            ]
            held.append((keyframe.decode, segments, file.series[0].shape))

    def decode(place: int) -> npt.NDArray[Any]:
        decode_segment, segments, shape = held[place]
        parts = [decode_segment(one, number)[0] for number, one in enumerate(segments)]
        return np.concatenate(parts, axis=None).reshape(shape)

    return decode


def _of_ome_zarr(images: Images, num_images: int) -> Decode:
    zstd = importlib.import_module("numcodecs.zstd").Zstd()
    held = [
        [chunk.read_bytes() for chunk in sorted((path / "0" / "c").glob("*/*/*"))]
        for path in _paths(images, num_images)
    ]
    shape = read_pixels(images).shape[1:]

    def decode(place: int) -> npt.NDArray[Any]:
        parts = [np.frombuffer(zstd.decode(chunk), np.uint16) for chunk in held[place]]
        return np.concatenate(parts).reshape(shape)

    return decode


def _of_parquet(images: Images, num_images: int) -> Decode:
    codec = pa.Codec("zstd")
    pixels = read_pixels(images)[:num_images]
    held = [codec.compress(image.tobytes()) for image in pixels]

    def decode(place: int) -> npt.NDArray[Any]:
        image = pixels[place]
        content = codec.decompress(held[place], image.nbytes)
        return np.frombuffer(content, image.dtype).reshape(image.shape)

    return decode


_DECODERS: Mapping[str, Callable[[Images, int], Decode]] = {
    "Parquet": _of_parquet,
    "TIFF": _of_tiff,
    "OME-Zarr": _of_ome_zarr,
}
