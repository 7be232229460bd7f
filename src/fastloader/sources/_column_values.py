"""Values of columns that hold no images, and names of channels, as plain Python and NumPy."""

from typing import Any

import numpy as np
import pyarrow as pa

from fastloader.errors import SourceError
from fastloader.sources._arrow_buffers import list_bounds, number_values, numpy_dtype
from fastloader.sources._protocol import ColumnValues

__all__ = ["arrow_type_of", "channel_names", "column_values"]

_MAX_INT64 = 2**63 - 1
_TIMES = {pa.timestamp("us").id, pa.duration("us").id}


def column_values(column: pa.ChunkedArray, where: str = "A column") -> ColumnValues:
    """Return a column as an array if it has numbers and no nulls, else as a list.

    Args:
        column: Of any type; a dictionary gives its values.
        where: File and column, for the error message.

    Raises:
        SourceError: If Python has no such value: of times those before the year 1 or after 9999,
            of a zone that is not known, or, without pandas, between two microseconds.
    """
    column = _plainly_stored(column)
    is_dictionary = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if is_dictionary else column.type
    dtype = None if isinstance(kind, pa.BaseExtensionType) else numpy_dtype(kind)
    if dtype is None or column.null_count:
        try:
            values: list[Any] = column.to_pylist()
        except (KeyError, OverflowError, ValueError) as error:
            raise SourceError(
                f"{where}, of {column.type}, has a value that Python cannot hold ({error}): leave the "
                f"column out, or store it as text or a number."
            ) from error
        return values
    if is_dictionary:
        column = column.cast(column.type.value_type)
    return np.concatenate([np.zeros(0, dtype), *map(number_values, column.chunks)])


def _plainly_stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as it is stored, if its type is somebody's own and has the same values."""
    kind = column.type
    if (
        not isinstance(kind, pa.ExtensionType)
        or kind.__arrow_ext_scalar_class__() is not pa.ExtensionScalar
    ):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)


def arrow_type_of(values: ColumnValues) -> pa.DataType:
    """Return the Arrow type that all values of a column can have, nulls among them.

    Args:
        values: As `column_values` gives them, or any others.

    Raises:
        pyarrow.ArrowException: If there is none; also TypeError or ValueError.
    """
    if isinstance(values, np.ndarray) and not values.dtype.hasobject:
        return pa.array(values[:0]).type
    kind = pa.infer_type(values)
    if kind.id in _TIMES and any(map(_nanoseconds, values)):
        return pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("ns")
    # Arrow never guesses an unsigned type: it has numbers in int64 or not at all.
    is_too_small = kind == pa.int64() and _largest(values) > _MAX_INT64
    return pa.uint64() if is_too_small else kind


def _nanoseconds(value: Any) -> int:
    """Return what a time of pandas has beyond microseconds, which Arrow would cut off."""
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)


def _largest(values: ColumnValues) -> int:
    return max((value for value in values if value is not None), default=0)


def channel_names(column: pa.StructArray) -> list[tuple[str | None, ...]]:
    """Return the names of the channels of each image; of none for a row without image.

    Args:
        column: Images with ``pixels_meta``.
    """
    nothing: list[tuple[str | None, ...]] = [()] * len(column)
    pixels_meta = column.field("pixels_meta")
    position = pixels_meta.type.get_field_index("channels")
    kind = None if position < 0 else pixels_meta.field(position).type
    element = getattr(kind, "value_type", None)
    if element is None or not pa.types.is_struct(element) or "name" not in element.names:
        return nothing
    start, stop, channels = list_bounds(pixels_meta.field(position))
    texts = channels.field("name")
    return [
        tuple(texts[at].as_py() for at in range(first, last))
        for first, last in zip(start.tolist(), stop.tolist(), strict=True)
    ]
