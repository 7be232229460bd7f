"""Arrays over mapped files travel as the name of the file and the place in it, not as contents."""

import mmap
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastloader.machine._address_space import read_spans

__all__ = ["reduce_mapped"]

_MODES = {"r": "r", "r+": "r+", "w+": "r+"}
"""As a file is opened again. With ``"c"`` the memory may have changes that no file has."""


def reduce_mapped(array: npt.NDArray[Any]) -> Any:
    """Return how a NumPy array is pickled whose elements lie in a file: mapped again.

    Args:
        array: Any array, `numpy.memmap` or made of one.

    Returns:
        As of ``__reduce__``; NotImplemented where the array has memory of its own, or the file is no
        longer the one of that name.
    """
    mapped = _mapped(array)
    if mapped is None or mapped.mode not in _MODES or min(array.strides, default=0) < 0:
        return NotImplemented
    if array.size == 0 or array.dtype.hasobject:
        return NotImplemented
    address = array.__array_interface__["data"][0]
    found = _find_file(address)
    path = Path(str(mapped.filename))
    if found is None or not path.exists():
        return NotImplemented
    inode, offset_bytes = found
    if path.stat().st_ino != inode:
        return NotImplemented
    is_memmap = isinstance(array, np.memmap)
    place = (str(path), _MODES[mapped.mode], offset_bytes, is_memmap)
    return _map_again, (*place, array.dtype, array.shape, array.strides)


def _mapped(array: npt.NDArray[Any]) -> "np.memmap[Any, Any] | None":
    """Return the map that an array is made of, if its memory is that of a map."""
    named: np.memmap[Any, Any] | None = None
    part: Any = array
    while isinstance(part, np.ndarray):
        if named is None and isinstance(part, np.memmap) and part.filename is not None:
            named = part
        part = part.base
    return named if isinstance(part, mmap.mmap) else None


def _find_file(address: int) -> tuple[int, int] | None:
    """Return the inode of the file that is mapped at an address, and the byte of it there."""
    with suppress(OSError):  # a system that does not tell
        for span in read_spans():
            if span.start <= address < span.stop:
                return span.inode, span.offset_bytes + address - span.start
    return None


def _map_again(
    path: str,
    mode: Any,
    offset_bytes: int,
    is_memmap: bool,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> npt.NDArray[Any]:
    extent = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    extent += dtype.itemsize
    whole: np.memmap[Any, Any] = np.memmap(path, np.uint8, mode, offset_bytes, (extent,))
    array: npt.NDArray[Any] = np.ndarray(shape, dtype, whole, strides=strides)
    return array.view(np.memmap) if is_memmap else array
