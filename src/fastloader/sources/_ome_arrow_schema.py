"""The OME-Arrow struct: one image with its metadata as one value of an Arrow column."""

from typing import Literal

import pyarrow as pa

__all__ = ["ome_arrow_type"]


def ome_arrow_type(
    pixel_type: pa.DataType | None = None, *, encoding: Literal["list", "bytes"] = "list"
) -> pa.StructType:
    """Return the canonical Arrow type of an image.

    Tables in the wild differ from it in order of fields, widths of integers and missing
    fields; readers find fields by name.

    Args:
        pixel_type: Type of one pixel in a list; uint16 when left out.
        encoding: Where a chunk's pixels are: in a ``list`` of numbers, or as ``bytes`` in
            C order beside the name of their dtype and codec, which is five to twenty times
            cheaper to read.

    References:
        OME-Arrow 0.1.0, ``OME_ARROW_STRUCT`` and ``OME_ARROW_BYTE_STRUCT``,
        https://github.com/WayScience/ome-arrow.
    """
    pixels = pa.field("pixels", pa.list_(pixel_type or pa.uint16()))
    content = [pixels]
    if encoding == "bytes":
        content = [
            pa.field("dtype", pa.string()),
            pa.field("compression", pa.string()),
            pa.field("pixel_bytes", pa.large_binary()),
        ]
    return pa.struct([
        ("type", pa.string()),
        ("version", pa.string()),
        ("id", pa.string()),
        ("name", pa.string()),
        ("image_type", pa.string()),
        ("acquisition_datetime", pa.timestamp("us")),
        ("pixels_meta", _pixels_meta_type()),
        ("chunk_grid", _chunk_grid_type()),
        ("chunks", pa.list_(pa.struct([*_chunk_place_fields(), *content]))),
        ("planes", pa.list_(pa.struct([*_plane_place_fields(), pixels]))),
        ("masks", pa.null()),
    ])


def _pixels_meta_type() -> pa.StructType:
    return pa.struct([
        ("dimension_order", pa.string()),
        ("type", pa.string()),
        ("size_x", pa.int32()),
        ("size_y", pa.int32()),
        ("size_z", pa.int32()),
        ("size_c", pa.int16()),
        ("size_t", pa.int32()),
        ("physical_size_x", pa.float32()),
        ("physical_size_y", pa.float32()),
        ("physical_size_z", pa.float32()),
        ("physical_size_x_unit", pa.string()),
        ("physical_size_y_unit", pa.string()),
        ("physical_size_z_unit", pa.string()),
        ("channels", pa.list_(_channel_type())),
    ])


def _channel_type() -> pa.StructType:
    return pa.struct([
        ("id", pa.string()),
        ("name", pa.string()),
        ("emission_um", pa.float32()),
        ("excitation_um", pa.float32()),
        ("illumination", pa.string()),
        ("color_rgba", pa.uint32()),
    ])


def _chunk_grid_type() -> pa.StructType:
    return pa.struct([
        ("order", pa.string()),
        ("chunk_t", pa.int32()),
        ("chunk_c", pa.int16()),
        ("chunk_z", pa.int32()),
        ("chunk_y", pa.int32()),
        ("chunk_x", pa.int32()),
        ("chunk_order", pa.string()),
    ])


def _chunk_place_fields() -> list[pa.Field]:
    names = ("t", "c", "z", "y", "x", "shape_z", "shape_y", "shape_x")
    return [pa.field(name, pa.int16() if name == "c" else pa.int32()) for name in names]


def _plane_place_fields() -> list[pa.Field]:
    return [pa.field("z", pa.int32()), pa.field("t", pa.int32()), pa.field("c", pa.int16())]
