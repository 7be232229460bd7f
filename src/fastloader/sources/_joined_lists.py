"""Lists of structs in several record batches as one array, without what is large in them."""

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fastloader.sources._arrow_buffers import has_structs, nulls_of_nothing

__all__ = ["join_fields", "join_lists", "num_items"]

Part: TypeAlias = tuple[npt.NDArray[Any], int]
"""Where each list of an array starts and the last one stops, and how many values there are."""

_NO_EDGES = np.zeros(1, np.int64)


def join_fields(array: pa.ChunkedArray, without: Collection[str]) -> pa.Array:
    """Return the values of record batches as one array.

    Args:
        array: Any; of lists of structs some fields are left out.
        without: Names of these, which are not looked at.

    Raises:
        pyarrow.ArrowInvalid: If offsets, those of a damaged file, could point anywhere.
        ValueError: If there are fewer of them than lists.
    """
    if has_structs(array.type):
        return join_lists(array, without)
    array.validate(full=True)
    return _one(array)


def join_lists(
    lists: pa.ChunkedArray, without: Collection[str] = (), apart: str | None = None
) -> pa.Array:
    """Return lists of structs as one array; errors as of `join_fields`.

    Args:
        lists: At least one array of them.
        without: Fields of the structs to leave out, which are not looked at.
        apart: Field of lists or bytes whose items need not be there: in their place are lists of
            nothing, as long and at the same places of as many items, which take no memory.
    """
    arrays = lists.chunks
    structs = [array.values for array in arrays]
    together = pa.chunked_array(structs)
    fields: dict[str, pa.Array] = {}
    for name, field in zip(together.type.names, together.flatten(), strict=True):
        if name == apart:
            parts = _parts(field.chunks)
            nothing = nulls_of_nothing(sum(num_values for _, num_values in parts))
            fields[name] = _joined(field.chunks, parts, nothing)
        elif name not in without:
            field.validate(full=True)
            fields[name] = _one(field)
    mask = pc.is_null(together).combine_chunks() if together.null_count else None
    values = pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=mask)
    joined = _joined(arrays, _parts(arrays, list(map(len, structs))), values)
    joined.validate(full=True)
    return joined


def num_items(array: pa.Array) -> int:
    """Return how many items there are at the places of lists or bytes.

    Raises:
        ValueError: If their ends are missing.
    """
    return _parts([array])[0][1]


def _joined(arrays: Sequence[pa.Array], parts: Sequence[Part], values: pa.Array) -> pa.Array:
    """Return lists one after another; what they hold is behind one another, too.

    Raises:
        ValueError: If a list reaches out of the values of its array, so into those of others.
    """
    within = [one for one, _ in parts]
    num_values = np.array([count for _, count in parts])
    edges = np.concatenate(within, dtype=np.int64)
    lengths = np.array(list(map(len, within)))
    lasts = lengths.cumsum() - 1
    firsts = lasts - lengths + 1
    wrong = (edges[firsts] < 0) | (edges[lasts] < 0) | (edges[lasts] > num_values)
    if wrong.any():
        at = wrong.argmax()
        raise ValueError(
            f"lists from {edges[firsts[at]]} to {edges[lasts[at]]} of {num_values[at]} values: some "
            f"reach out of them"
        )
    is_start = np.ones(len(edges), np.bool_)
    is_start[lasts] = False
    starts = edges + (num_values.cumsum() - num_values).repeat(lengths)
    sizes = (edges[1:] - edges[:-1])[is_start[:-1]]
    num_nulls = sum(array.null_count for array in arrays)
    mask = None
    if num_nulls:
        valid = pc.is_valid(pa.chunked_array(arrays)).combine_chunks()
        if valid.false_count != num_nulls:
            raise ValueError(f"{num_nulls} lists are said to be null, but others are")
        mask = valid.buffers()[1]
    return pa.Array.from_buffers(
        pa.large_list_view(values.type),  # there may be others between two of them
        len(sizes),
        [mask, pa.py_buffer(starts[is_start]), pa.py_buffer(sizes)],
        num_nulls,
        children=[values],
    )


def _parts(arrays: Sequence[pa.Array], lengths: Sequence[int] | None = None) -> list[Part]:
    """Return the places of lists or bytes, of one type.

    Args:
        arrays: At least one.
        lengths: How many values each has, if that is known.

    Raises:
        ValueError: If there are fewer places than lists.
    """
    kind = arrays[0].type
    if pa.types.is_fixed_size_list(kind):
        return [
            (np.arange(one.offset, one.offset + len(one) + 1) * kind.list_size, len(one.values))
            for one in arrays
        ]
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    is_wide = pa.types.is_large_list(kind) or pa.types.is_large_binary(kind)
    width: np.dtype[Any] = np.dtype(np.int64 if is_wide else np.int32)
    within = []
    for one in arrays:
        # `buffers` of lists makes objects of those of all fields, too.
        buffer = (one.offsets if is_list else one).buffers()[1]
        count, start = len(one) + 1, one.offset * width.itemsize
        is_there = count > 1
        within.append(
            np.frombuffer(buffer or b"", width, count, start) if is_there else _NO_EDGES
        )
    if lengths is None and is_list:
        lengths = [len(one.values) for one in arrays]
    elif lengths is None:
        lengths = [max(0, int(edges[-1])) for edges in within]
    return list(zip(within, lengths, strict=True))


def _one(array: pa.ChunkedArray) -> pa.Array:
    is_one = array.num_chunks == 1 or not len(array)  # as planes beside chunks
    return array.chunk(0) if is_one else array.combine_chunks()
