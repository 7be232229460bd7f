"""Sizes of a row group whose images are all alike, from the file's footer alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from fastloader.sources._ome_arrow_layout import SIZES

__all__ = ["UniformGroup", "find_uniform"]


@dataclass(frozen=True, slots=True)
class UniformGroup:
    """What all images of a row group have in common; all are stored as chunks."""

    shape: tuple[int, ...]
    """Sizes T, C, Z, Y, X."""
    stated_type: str
    """What ``pixels_meta.type`` says; empty if the column does not have it."""
    chunk_dtype: str
    """What the ``dtype`` of each chunk says; empty if chunks are lists."""


def find_uniform(group: pq.RowGroupMetaData, leaves: Mapping[str, int]) -> UniformGroup | None:
    """Return what all images of a row group have in common, or None if they must be read.

    Reading ten small columns of each row group costs more than decoding the pixels of a few
    small images; the footer has their least and greatest values.

    Args:
        group: Metadata of the row group.
        leaves: Position of the leaf columns ``size_t`` to ``size_x``, ``shape_z``,
            ``shape_y``, ``shape_x`` and, if there, ``type`` and ``dtype``.
    """
    values = {name: _only_value(group.column(leaf)) for name, leaf in leaves.items()}
    numbers = [values.get(name) for name in (*SIZES, "shape_z", "shape_y", "shape_x")]
    if None in values.values() or not all(isinstance(one, int) and one > 0 for one in numbers):
        return None
    shape = tuple(int(values[name]) for name in SIZES)
    num_pixels = group.num_rows
    for size in shape:
        num_pixels *= size
    num_in_chunks = group.column(leaves["shape_z"]).num_values
    for name in ("shape_z", "shape_y", "shape_x"):
        num_in_chunks *= int(values[name])
    if num_in_chunks != num_pixels:
        return None
    return UniformGroup(shape, str(values.get("type", "")), str(values.get("dtype", "")))


def _only_value(column: pq.ColumnChunkMetaData) -> Any:
    """Return the value that all entries of a column have; None if any differs or is null."""
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max or not statistics.has_null_count:
        return None
    if statistics.null_count or statistics.min != statistics.max:
        return None
    return statistics.min
