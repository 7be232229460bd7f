"""Reads what is compressed straight to memory that is used again, by where codecs are in numcodecs' modules.

Arrow gives each buffer memory of its own, fresh from the system where that is megabytes.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.sources._codec_addresses import address_in_numcodecs

__all__ = ["STRAIGHT_READS", "decompress_lz4_block", "knows_lz4_blocks"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Read: TypeAlias = Callable[[memoryview], int]
"""Fills a buffer with the next bytes and returns how many there were."""
Take: TypeAlias = Callable[[int], Bytes]
"""Gives memory of a length."""
StraightRead: TypeAlias = Callable[[Read, int, int, Take], Bytes | None]
"""Takes how many bytes are stored, and how many they are when decompressed. Returns what was decompressed;
None if it is damaged, or numcodecs is not there."""

_INT, _SIZE, _ADDRESS = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
# Such functions are called without the interpreter's lock.
_LZ4_BLOCK = ctypes.CFUNCTYPE(_INT, _ADDRESS, _ADDRESS, _INT, _INT)

_STEP_BYTES = 256 << 10
"""Of what is stored, read at once."""
_STABLE_OUT_BUFFER = 1001
"""Zstandard's parameter: all output stays in one place, so that no window of it is kept beside it."""
_LEAST_ERROR = (1 << 8 * ctypes.sizeof(_SIZE)) - 128
"""What Zstandard returns from here on are errors."""


class _Span(ctypes.Structure):
    """Zstandard's ``ZSTD_inBuffer`` and ``ZSTD_outBuffer``."""

    _fields_ = (("address", _ADDRESS), ("num_bytes", _SIZE), ("position", _SIZE))


class _ZstdStream(NamedTuple):
    create: Callable[[], int | None]
    set_parameter: Callable[[int, int, int], int]
    decompress: Callable[..., int]
    free: Callable[[int], int]


def knows_lz4_blocks() -> bool:
    """Return whether LZ4 can be decompressed here."""
    return _lz4_block() is not None


def decompress_lz4_block(stored: Bytes, target: Bytes) -> bool:
    """Decompress a block of LZ4 that has no frame.

    Args:
        stored: The block.
        target: Filled; contiguous, as long as all bytes.

    Returns:
        False if it is damaged, or numcodecs is not there.
    """
    decompress = _lz4_block()
    if decompress is None:
        return False
    count = decompress(stored.ctypes.data, target.ctypes.data, len(stored), len(target))
    return count == len(target)


def _read_lz4(read: Read, num_stored: int, num_bytes: int, take: Take) -> Bytes | None:
    """Read a block to the end of the memory that it is decompressed to, as `StraightRead`.

    What is written does not come to what is still to be read, if that begins a little further on.

    References:
        ``LZ4_DECOMPRESS_INPLACE_MARGIN``, https://github.com/lz4/lz4/blob/dev/lib/lz4.h.
    """
    num_taken = num_bytes + (num_stored >> 8) + 32
    if num_stored > num_taken:
        return None
    memory = take(num_taken)
    stored, target = memory[len(memory) - num_stored :], memory[:num_bytes]
    is_read = read(stored.data) == num_stored and decompress_lz4_block(stored, target)
    return target if is_read else None


def _read_zstd(read: Read, num_stored: int, num_bytes: int, take: Take) -> Bytes | None:
    """Decompress what is read bit by bit, so that it need never be in memory as a whole."""
    functions = _zstd_stream()
    stream = None if functions is None else functions.create()
    if functions is None or stream is None:
        return None
    try:
        functions.set_parameter(stream, _STABLE_OUT_BUFFER, 1)
        target = take(num_bytes)
        piece = np.empty(min(_STEP_BYTES, num_stored), np.uint8)
        filled = _Span(target.ctypes.data, num_bytes, 0)
        left, code = num_stored, 1
        while left:
            count = read(piece[:left].data)
            left -= count
            given = _Span(piece.ctypes.data, count, 0)
            while given.position < count and 0 < code < _LEAST_ERROR:
                code = functions.decompress(stream, ctypes.byref(filled), ctypes.byref(given))
            if not count or given.position < count or (left and code == 0):
                return None
        return target if code == 0 and filled.position == num_bytes else None
    finally:
        functions.free(stream)


def _read_plain(read: Read, num_stored: int, num_bytes: int, take: Take) -> Bytes | None:
    """Read what is not compressed."""
    target = take(num_bytes)
    return target if num_stored == num_bytes == read(target.data) else None


STRAIGHT_READS: dict[str, StraightRead] = {
    "lz4": _read_lz4,
    "uncompressed": _read_plain,
    "zstd": _read_zstd,
}
"""By the codec, as Parquet's pages name it: LZ4 is a block without a frame there."""


@cache
def _lz4_block() -> Callable[[int, int, int, int], int] | None:
    address = address_in_numcodecs("lz4", "LZ4_decompress_safe")
    return _LZ4_BLOCK(address) if address else None


@cache
def _zstd_stream() -> _ZstdStream | None:
    kinds = {
        "ZSTD_createDCtx": ctypes.CFUNCTYPE(_ADDRESS),
        "ZSTD_DCtx_setParameter": ctypes.CFUNCTYPE(_SIZE, _ADDRESS, _INT, _INT),
        "ZSTD_decompressStream": ctypes.CFUNCTYPE(_SIZE, _ADDRESS, _ADDRESS, _ADDRESS),
        "ZSTD_freeDCtx": ctypes.CFUNCTYPE(_SIZE, _ADDRESS),
    }
    addresses = {name: address_in_numcodecs("zstd", name) for name in kinds}
    if not all(addresses.values()):
        return None
    return _ZstdStream(*(kind(addresses[name]) for name, kind in kinds.items()))
