"""Images as OME-Arrow structs: byte chunks in their own pixel type."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.errors import ShapeError
from fastloader.sources import PIXEL_TYPES, ImageDescription, ome_arrow_type

__all__ = ["VERSION", "Image", "check_pixels", "image_column"]

Image: TypeAlias = npt.NDArray[Any]
"""Pixels with axes T, C, Z, Y, X."""

VERSION = "0.1.0"
"""Of ome-arrow, whose struct this is."""


def image_column(
    images: Sequence[Image | None], descriptions: Sequence[ImageDescription], first_row: int
) -> pa.StructArray:
    """Return images as a column.

    Each channel of each time is one chunk, which holds all its planes: read whole it is one
    run of bytes, in the order in which a batch wants them.

    Args:
        images: Pixels with axes T, C, Z, Y, X, any numbers; None for a row without image.
        descriptions: What is known of each beside its pixels; channels of all or none.
        first_row: Number of the first row, from which ids and names are made where there are
            none.

    Raises:
        ShapeError: If an image has other axes, no pixels, or other channels than described.
    """
    kind = ome_arrow_type(encoding="bytes")
    is_there = np.array([image is not None for image in images], np.bool_)
    filled = [np.zeros((1, 1, 1, 1, 1), np.uint8) if one is None else one for one in images]
    for row, (image, description) in enumerate(
        zip(filled, descriptions, strict=True), first_row
    ):
        check_pixels(image)
        _check_channels(image, description, row)
    shapes = np.array([image.shape for image in filled], np.int64).reshape(-1, 5)
    length = len(images)
    named = [
        replace(one, id=one.id or str(row), name=one.name or one.id or str(row))
        for row, one in enumerate(descriptions, first_row)
    ]
    values = {
        "type": pa.repeat("ome.arrow", length),
        "version": pa.repeat(VERSION, length),
        **_column_of(named, ("id", "name", "image_type", "acquisition_datetime")),
        "pixels_meta": _pixels_meta(filled, shapes, descriptions),
        "chunk_grid": _chunk_grid(shapes),
        "chunks": _chunks(filled, shapes, is_there),
        "planes": _lists(np.zeros(length, np.int64), kind.field("planes").type, {}),
    }
    return _struct(kind, length, values, mask=None if is_there.all() else pa.array(~is_there))


def _column_of(records: Iterable[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return attributes of objects as columns."""
    records = list(records)
    return {name: [getattr(record, name) for record in records] for name in names}


def check_pixels(image: Image) -> None:
    """Check that an image can be written.

    Raises:
        ShapeError: If it has other axes, no pixels, or pixels of another type.
    """
    if image.ndim != 5 or not image.size or image.dtype.name not in PIXEL_TYPES:
        raise ShapeError(
            f"Expected an image with axes T, C, Z, Y, X, each of size 1 or more, and one of the "
            f"types {', '.join(PIXEL_TYPES)}, but got {image.dtype.name} of shape "
            f"{image.shape}."
        )


def _check_channels(image: Image, description: ImageDescription, row: int) -> None:
    names = [channel.name for channel in description.channels]
    if len(names) not in {0, image.shape[1]}:
        raise ShapeError(
            f"Image {row}, of {image.shape[1]} channels, cannot have the channel names {names}: "
            f"expected one each, or none."
        )


def _pixels_meta(
    images: Sequence[Image],
    shapes: npt.NDArray[np.int64],
    descriptions: Sequence[ImageDescription],
) -> pa.StructArray:
    kind = ome_arrow_type(encoding="bytes").field("pixels_meta").type
    sizes = {f"size_{axis}": shapes[:, place] for place, axis in enumerate("tczyx")}
    channel_type = kind.field("channels").type
    channels = _column_of(
        (channel for one in descriptions for channel in one.channels),
        channel_type.value_type.names,
    )
    counts = np.array([len(one.channels) for one in descriptions], np.int64)
    physical = [f"physical_size_{axis}" for axis in "xyz"]
    values = {
        "dimension_order": pa.array(
            ["XYCT" if z == 1 else "XYZCT" for z in shapes[:, 2]], pa.string()
        ),
        "type": pa.array([image.dtype.name for image in images], pa.string()),
        "channels": _lists(counts, channel_type, channels),
        **_column_of(descriptions, [*physical, *(f"{size}_unit" for size in physical)]),
    }
    return _struct(kind, len(images), {**values, **sizes})


def _chunk_grid(shapes: npt.NDArray[np.int64]) -> pa.StructArray:
    kind = ome_arrow_type(encoding="bytes").field("chunk_grid").type
    length = len(shapes)
    values = {f"chunk_{axis}": shapes[:, place] for place, axis in enumerate("tczyx")}
    values["chunk_t"] = values["chunk_c"] = np.ones(length, np.int64)
    orders = {"order": pa.repeat("TCZYX", length), "chunk_order": pa.repeat("ZYX", length)}
    return _struct(kind, length, {**values, **orders})


def _chunks(
    images: Sequence[Image], shapes: npt.NDArray[np.int64], is_there: npt.NDArray[np.bool_]
) -> pa.ListArray:
    """Return the chunks of each image, t by t and c by c."""
    counts = np.where(is_there, shapes[:, 0] * shapes[:, 1], 0)
    owner = np.repeat(np.arange(len(images)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    number = np.arange(len(owner)) - first
    num_channels = shapes[owner, 1]
    zero = np.zeros(len(owner), np.int64)
    item_sizes = np.array([image.dtype.itemsize for image in images], np.int64)
    chunk_bytes = shapes[owner, 2:].prod(axis=1) * item_sizes[owner]
    content = [
        np.ascontiguousarray(image).reshape(-1).view(np.uint8)
        for image, is_image in zip(images, is_there.tolist(), strict=True)
        if is_image
    ]
    kind = ome_arrow_type(encoding="bytes").field("chunks").type
    return _lists(
        counts,
        kind,
        {
            "t": number // num_channels if len(owner) else zero,
            "c": number % num_channels if len(owner) else zero,
            "z": zero,
            "y": zero,
            "x": zero,
            "shape_z": shapes[owner, 2],
            "shape_y": shapes[owner, 3],
            "shape_x": shapes[owner, 4],
            "dtype": pa.array([images[at].dtype.name for at in owner.tolist()], pa.string()),
            "pixel_bytes": _binary(chunk_bytes, content),
        },
    )


def _binary(sizes: npt.NDArray[np.int64], parts: list[npt.NDArray[np.uint8]]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    # One part is used as it is: an image can be most of what there is to hold.
    content = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint8), *parts])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(sizes), buffers)


def _lists(
    counts: npt.NDArray[np.int64], kind: pa.ListType, values: dict[str, Any]
) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    content = _struct(kind.value_type, int(offsets[-1]), values)
    return pa.ListArray.from_arrays(pa.array(offsets), content, type=kind)


def _struct(
    kind: pa.StructType, length: int, values: dict[str, Any], mask: pa.Array | None = None
) -> pa.StructArray:
    """Return a struct array; fields that are not given are null."""
    columns = []
    for field in kind:
        value = values.get(field.name)
        if value is None:
            value = pa.nulls(length, field.type)
        elif not isinstance(value, pa.Array):
            value = pa.array(value, field.type)
        columns.append(value)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
