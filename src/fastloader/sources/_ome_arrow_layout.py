"""How a column stores its images: found by field names, since types and order vary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa

from fastloader.errors import SourceError
from fastloader.sources._arrow_buffers import numpy_dtype

__all__ = [
    "CHUNK_PLACE",
    "PIXELS",
    "PLANE_PLACE",
    "SIZES",
    "UNSIZED",
    "ColumnLayout",
    "choose_image_column",
    "find_image_columns",
    "listed",
    "other_columns",
    "refuse_column",
]

SIZES = ("size_t", "size_c", "size_z", "size_y", "size_x")
CHUNK_PLACE = ("t", "c", "z", "y", "x", "shape_z", "shape_y", "shape_x")
PLANE_PLACE = ("t", "c", "z")
PIXELS = ("pixels", "pixel_bytes")
"""Fields of chunks and planes that are large; all others say where and what they are."""
UNSIZED = (*PIXELS, "t", "c", "y", "x", "compression")
"""Fields that tell neither sizes nor types of images, but for one of planes, which have no other."""
_TYPED_BYTES = ("dtype", "compression", "pixel_bytes")


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """Which fields of a column hold the pixels, and as what."""

    chunk_dtype: np.dtype[np.generic] | None
    """Pixel type of chunks that are lists of numbers; None if they are bytes or missing."""
    plane_dtype: np.dtype[np.generic] | None
    """Pixel type of planes; None if the column has none."""
    has_byte_chunks: bool
    """True if each chunk is bytes that state their own pixel type."""
    has_pixel_type: bool
    """True if ``pixels_meta`` states a pixel type."""
    samples_per_pixel: int = 1
    """Values that each pixel has side by side: 3 for interleaved colours, which ``size_c`` does
    not count. They are read as an image that is so many times as wide."""

    @classmethod
    def of(
        cls, kind: pa.DataType, where: str, *, is_interleaved: bool = False
    ) -> "ColumnLayout":
        """Return the layout of a column of the Arrow type `kind`.

        Args:
            kind: Type of the column.
            where: File and column, for error messages.
            is_interleaved: Whether each pixel is red, green and blue side by side.

        Raises:
            SourceError: If this is not OME-Arrow, or pixels are of an unknown kind.
        """
        if not _is_ome_arrow(kind):
            raise SourceError(
                f"{where} is no OME-Arrow image: expected a struct with pixels_meta "
                f"({', '.join(SIZES)}) and chunks or planes, but got {_short(kind)}."
            )
        chunk = _element_of(kind, "chunks")
        has_byte_chunks = chunk is not None and chunk.get_field_index("pixel_bytes") >= 0
        chunk_dtype = None
        if chunk is not None:
            content = ("dtype", "pixel_bytes") if has_byte_chunks else ("pixels",)
            _check_fields(chunk, (*CHUNK_PLACE, *content), f"{where}, chunks")
            if not has_byte_chunks:
                chunk_dtype = _pixel_dtype(chunk, f"{where}, chunks")
        plane = _element_of(kind, "planes")
        plane_dtype = None
        if plane is not None:
            _check_fields(plane, (*PLANE_PLACE, "pixels"), f"{where}, planes")
            plane_dtype = _pixel_dtype(plane, f"{where}, planes")
        pixels_meta = kind.field("pixels_meta").type
        return cls(
            chunk_dtype,
            plane_dtype,
            has_byte_chunks,
            pixels_meta.get_field_index("type") >= 0,
            3 if is_interleaved else 1,
        )

    @property
    def has_chunks(self) -> bool:
        """True if the column has chunks of either kind."""
        return self.has_byte_chunks or self.chunk_dtype is not None

    @property
    def chunk_fields(self) -> tuple[str, ...]:
        """Fields of a chunk that hold its place and pixels."""
        return CHUNK_PLACE + (_TYPED_BYTES if self.has_byte_chunks else ("pixels",))


def find_image_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that are OME-Arrow images."""
    return [field.name for field in schema if _is_ome_arrow(field.type)]


def choose_image_column(schema: pa.Schema, wanted: str | None, path: str) -> str:
    """Return the column to read images from.

    Args:
        schema: Of the table.
        wanted: Name that the caller gave, if any.
        path: File or table, for error messages.

    Raises:
        SourceError: If the column is missing, its name is that of another one too, or none was
            named and not exactly one has images.
    """
    candidates = find_image_columns(schema)
    if wanted is not None:
        if wanted not in schema.names:
            raise SourceError(
                f"{path} has no column {wanted!r}; its columns of images are "
                f"{listed(candidates)}."
            )
        return _only(wanted, schema, path)
    if len(candidates) != 1:
        raise SourceError(
            f"{path} has {len(candidates)} columns of OME-Arrow images ({listed(candidates)}): "
            f"expected one, or image_column= to say which."
        )
    return _only(candidates[0], schema, path)


def other_columns(schema: pa.Schema, image_column: str) -> tuple[str, ...]:
    """Return the columns without images, but for those that share a name and have none to go by.

    Args:
        schema: Of the table.
        image_column: The column that is read.
    """
    images = {*find_image_columns(schema), image_column}
    return tuple(
        name for name in schema.names if name not in images and schema.names.count(name) == 1
    )


def refuse_column(name: str, known: Sequence[str], schema: pa.Schema, path: str) -> NoReturn:
    """Say why a column that was asked for cannot be given.

    Args:
        name: Of the column.
        known: Names of those that can.
        schema: Of the table.
        path: Of the table, for the message.

    Raises:
        SourceError: Always.
    """
    count = schema.names.count(name)
    there_is = (
        f", but {count} of that name, which cannot be told apart: give all but one another name"
        if count > 1
        else f"; it has {listed(known)}"
    )
    raise SourceError(f"{path} has no column {name!r} beside its images{there_is}.")


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence."""
    return ", ".join(repr(name) for name in names) or "none"


def _only(name: str, schema: pa.Schema, path: str) -> str:
    """Return a name that one column has.

    Raises:
        SourceError: If several have it.
    """
    count = schema.names.count(name)
    if count > 1:
        raise SourceError(
            f"{path} has {count} columns of the name {name!r}, which cannot be told apart: "
            f"expected one."
        )
    return name


def _is_ome_arrow(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    position = kind.get_field_index("pixels_meta")
    if position < 0 or not pa.types.is_struct(kind.field(position).type):
        return False
    has_sizes = all(kind.field(position).type.get_field_index(name) >= 0 for name in SIZES)
    return has_sizes and any(
        _element_of(kind, name) is not None for name in ("chunks", "planes")
    )


def _element_of(kind: pa.StructType, name: str) -> pa.StructType | None:
    """Return the struct that the list `name` holds, or None without such a list."""
    position = kind.get_field_index(name)
    if position < 0:
        return None
    element = getattr(kind.field(position).type, "value_type", None)
    return element if element is not None and pa.types.is_struct(element) else None


def _check_fields(kind: pa.StructType, names: tuple[str, ...], where: str) -> None:
    missing = [name for name in names if kind.get_field_index(name) < 0]
    if missing:
        raise SourceError(f"{where}: the fields {', '.join(missing)} are missing.")


def _pixel_dtype(piece: pa.StructType, where: str) -> np.dtype[np.generic] | None:
    kind = piece.field("pixels").type
    dtype = numpy_dtype(getattr(kind, "value_type", None))
    if dtype is None and not _holds_nothing(kind):
        raise SourceError(
            f"{where}: pixels are {_short(kind)}, but expected a list of integers, floats or bools."
        )
    return dtype


def _holds_nothing(kind: pa.DataType) -> bool:
    """True for what Arrow infers where every row is null or empty."""
    return bool(pa.types.is_null(kind) or pa.types.is_null(getattr(kind, "value_type", kind)))


def _short(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= 80 else f"{text[:77]}..."
