"""NumPy views of what Arrow arrays hold, without a Python object per value."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "binary_bounds",
    "decoded",
    "fits_int64",
    "has_structs",
    "integer_values",
    "list_bounds",
    "nulls_of_nothing",
    "number_values",
    "numpy_dtype",
    "release_memory",
    "stored",
    "stored_schema",
    "text_codes",
    "valid_mask",
]

Integers: TypeAlias = npt.NDArray[np.int64]

_NUMBER_TYPES: dict[pa.DataType, np.dtype[Any]] = {
    pa.bool_(): np.dtype(np.bool_),
    pa.int8(): np.dtype(np.int8),
    pa.int16(): np.dtype(np.int16),
    pa.int32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.uint8(): np.dtype(np.uint8),
    pa.uint16(): np.dtype(np.uint16),
    pa.uint32(): np.dtype(np.uint32),
    pa.uint64(): np.dtype(np.uint64),
    pa.float16(): np.dtype(np.float16),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
}
_FEW_TEXTS = 256
"""Compared as objects in less than half the time, those of one image in a fifth."""
_TEXTS = {pa.string(), pa.large_string(), pa.string_view()}
_MOST_INLINE_BYTES = 12
"""Of a binary view."""
_FIT_INT64 = {
    kind for kind, dtype in _NUMBER_TYPES.items() if np.can_cast(dtype, np.int64, "safe")
}


def numpy_dtype(arrow_type: pa.DataType) -> np.dtype[Any] | None:
    """Return the dtype of an Arrow type of numbers or truth values, or None for another type."""
    return _NUMBER_TYPES.get(arrow_type)


def stored(array: pa.Array) -> pa.Array:
    """Return an array as it is stored, if it is of a type that somebody has registered."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose structs are such, where somebody has registered a type for them."""
    return pa.schema(
        [
            field.with_type(field.type.storage_type)
            if isinstance(field.type, pa.BaseExtensionType)
            and pa.types.is_struct(field.type.storage_type)
            else field
            for field in schema
        ],
        schema.metadata,
    )


def fits_int64(arrow_type: pa.DataType) -> bool:
    """Return whether values are numbers or truth values that int64 holds, all of them."""
    return arrow_type in _FIT_INT64


def decoded(array: pa.Array) -> pa.Array:
    """Return an array without its dictionary, if it has one."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values are not null, shape ``(len(array),)``."""
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    bitmap = array.buffers()[0]
    if bitmap is None:  # arrays of type null have no bitmap
        return np.zeros(len(array), np.bool_)
    first_byte = array.offset // 8
    last_byte = (array.offset + len(array) + 7) // 8
    bits = np.unpackbits(
        np.frombuffer(bitmap, np.uint8, last_byte - first_byte, first_byte), bitorder="little"
    )
    return bits[array.offset % 8 :][: len(array)].astype(np.bool_)


def list_bounds(array: pa.Array) -> tuple[Integers, Integers, pa.Array]:
    """Return where each list starts and stops in the array of all values, and that array.

    `flatten` would lose the borders of lists that are null, which may have a length; here
    they are empty.

    Args:
        array: Lists of any Arrow list type; a slice is honoured.

    Returns:
        First position and position after the last, shape ``(len(array),)`` each, and the
        values, which a slice of `array` does not cut.
    """
    kind, num_lists = array.type, len(array)
    if num_lists == 0:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, array.values
    if pa.types.is_fixed_size_list(kind):
        start = (array.offset + np.arange(num_lists, dtype=np.int64)) * kind.list_size
        stop = start + kind.list_size
    elif pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        start = np.from_dlpack(array.offsets).astype(np.int64)[:num_lists]
        stop = start + np.from_dlpack(array.sizes)[:num_lists]
    else:
        edges = np.from_dlpack(array.offsets).astype(np.int64)
        start, stop = edges[:-1], edges[1:]
    if array.null_count:
        valid = valid_mask(array)
        start, stop = np.where(valid, start, 0), np.where(valid, stop, 0)
    return start, stop, array.values


def has_structs(kind: pa.DataType) -> bool:
    """Return whether values are lists of structs, whose fields can be told apart."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list and pa.types.is_struct(kind.value_type))


def nulls_of_nothing(length: int) -> pa.Array:
    """Return nulls without a type, which take no memory.

    `pyarrow.nulls` clears a bit for each on its way, of pixels megabytes.
    """
    return pa.Array.from_buffers(pa.null(), length, [None])


def binary_bounds(array: pa.Array) -> tuple[Integers, Integers, npt.NDArray[np.uint8]]:
    """Return where each value starts and stops in the bytes of all values, and those bytes.

    Args:
        array: Of any Arrow binary type; a slice is honoured. Nulls are empty.
    """
    if pa.types.is_binary_view(array.type) and (found := _view_bounds(array)) is not None:
        return found
    if not pa.types.is_large_binary(array.type):
        array = array.cast(pa.large_binary())
    _, offsets, content = array.buffers()
    if len(array) == 0 or content is None:
        nothing = np.zeros(len(array), np.int64)
        return nothing, nothing, np.zeros(0, np.uint8)
    edges = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    start, stop = edges[:-1], edges[1:]
    if array.null_count:
        valid = valid_mask(array)
        start, stop = np.where(valid, start, 0), np.where(valid, stop, 0)
    return start, stop, np.frombuffer(content, np.uint8)


def _view_bounds(
    array: pa.Array,
) -> tuple[Integers, Integers, npt.NDArray[np.uint8]] | None:
    """Return the bounds of binary views without a copy of their bytes.

    Returns:
        None if the bytes are not all in one buffer: short ones lie in the views themselves.
    """
    _, views, *contents = array.buffers()
    if views is None or len(contents) != 1:
        return None
    content = np.frombuffer(contents[0], np.uint8)
    view = np.frombuffer(views, np.int32, 4 * len(array), 16 * array.offset).reshape(-1, 4)
    size, _, number, start = view.astype(np.int64).T
    valid, stop = valid_mask(array), start + size
    is_there = (
        (size > _MOST_INLINE_BYTES) & (number == 0) & (start >= 0) & (stop <= len(content))
    )
    if not (is_there | ~valid).all():
        return None
    return np.where(valid, start, 0), np.where(valid, stop, 0), content


def number_values(array: pa.Array) -> npt.NDArray[np.generic]:
    """Return the numbers of an array as a read-only view; what lies under a null is anything.

    Truth values are bits in Arrow and bytes in NumPy: they are copied.
    """
    dtype: np.dtype[np.generic] = _NUMBER_TYPES[array.type]
    if len(array) and not array.null_count and dtype.kind != "b":
        return np.from_dlpack(array)  # a third of the time of what follows
    content = array.buffers()[1]
    if content is None:
        return np.zeros(len(array), dtype)
    if dtype.kind == "b":
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        return bits[array.offset : array.offset + len(array)].view(dtype)
    return np.frombuffer(content, dtype, len(array), array.offset * dtype.itemsize)


def integer_values(array: pa.Array) -> Integers:
    """Return numbers of any Arrow type as int64, 0 for null.

    Args:
        array: Integers of any width, also as whole floats; see `decoded`.

    Raises:
        pyarrow.ArrowInvalid: If a value is not a whole number within int64.
    """
    if not fits_int64(array.type):
        array = array.cast(pa.int64())  # checks each value; too slow to be done always
    values = number_values(array).astype(np.int64)
    return np.where(valid_mask(array), values, 0) if array.null_count else values


def text_codes(array: pa.Array) -> tuple[Integers, list[str]]:
    """Return which of few distinct texts each value is, -1 for null, and those texts."""
    if not pa.types.is_dictionary(array.type):
        if array.null_count == len(array):
            return np.full(len(array), -1, np.int64), []
        if len(array) <= _FEW_TEXTS and array.type in _TEXTS:
            return _codes_of_few(array)
        array = array.dictionary_encode()
    indices = array.indices
    codes = integer_values(indices)
    if indices.null_count:
        codes = np.where(valid_mask(indices), codes, -1)
    return codes, [str(text) for text in array.dictionary]


def _codes_of_few(array: pa.Array) -> tuple[Integers, list[str]]:
    texts = array.to_pylist()
    names = [text for text in dict.fromkeys(texts) if text is not None]
    if len(names) == 1 and not array.null_count:
        return np.zeros(len(texts), np.int64), names
    places = {None: -1} | {text: code for code, text in enumerate(names)}
    return np.array([places[text] for text in texts], np.int64), names


def release_memory() -> None:
    """Give memory back that Arrow keeps for its next arrays: some hundred megabytes at times.

    For the end of much reading. Workers that are forked later would each inherit it.
    """
    pa.default_memory_pool().release_unused()
