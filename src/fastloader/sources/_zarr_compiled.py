"""Zarr arrays as C reads them: see `_chunks.c`."""

import numpy as np

from fastloader.sources._codec_addresses import codec_addresses
from fastloader.sources._zarr_array import ZarrArray

__all__ = ["compiled_numbers"]

_AXES = 5
_CODECS = {None: 0, "zlib": 1, "blosc": 2, "lz4": 3, "zstd": 4}
_INDEX_LAST, _INDEX_FIRST = 1, 2


def compiled_numbers(array: ZarrArray) -> tuple[int, ...] | None:
    """Return what C is told of all arrays like this one; None where it cannot decode them."""
    chunks, shards = array.chunks, array.shards
    if (
        chunks is None
        or chunks.has_checksum
        or chunks.permutation not in {None, tuple(range(len(array.shape)))}
        or chunks.dtype.kind == "b"  # of which not all bytes are valid
        or len(array.shape) > _AXES
        or chunks.compressor not in _CODECS
    ):
        return None
    codec = _CODECS[chunks.compressor]
    if codec and not codec_addresses()[codec - 1]:
        return None
    fill = np.zeros(1, np.int64)
    fill.view(array.dtype)[0] = array.fill_value
    ones = (1,) * (_AXES - len(array.shape))
    return (
        *(*ones, *array.shape),
        *(*ones, *array.file_shape),
        *(*ones, *chunks.shape),
        len(array.shape),
        ord(array.separator),
        array.dtype.itemsize,
        not chunks.dtype.isnative,
        int(fill[0]),
        codec,
        0 if shards is None else _INDEX_FIRST if shards.is_index_first else _INDEX_LAST,
        shards is not None and shards.has_index_checksum,
    )
