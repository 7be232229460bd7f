"""Decompresses straight to where bytes stay: Arrow gives each buffer memory of its own.

By LZ4 and Zstandard at their addresses in numcodecs' modules, where these are there. The blocks of LZ4, of
which there are many, are gone through in C, where that was compiled.
"""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader._extension_modules import RAW_FILES, extension_module
from fastloader.sources._codec_addresses import address_in_numcodecs
from fastloader.sources._lz4_frame import decompress_frame

__all__ = ["StraightCodec", "read_zstd", "straight_codec"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
StraightCodec: TypeAlias = Callable[[Bytes, Bytes], bool]
"""Decompresses the first array to the second, contiguous one, whose length must be that of all
bytes; False if they are damaged, or of a kind that Arrow has to read: what is there is then anything."""

_INT, _SIZE, _ADDRESS = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
# Such functions are called without the interpreter's lock.
_ZSTD = ctypes.CFUNCTYPE(_SIZE, _ADDRESS, _SIZE, _ADDRESS, _SIZE)

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


@cache
def straight_codec(name: str) -> StraightCodec | None:
    """Return what decompresses a buffer of an Arrow file; None if there is nothing here.

    Args:
        name: Of the codec, as Arrow has it: "lz4" for frames, or "zstd".
    """
    if name == "lz4":
        blocks = getattr(extension_module(RAW_FILES), "decompress_blocks", None)
        address = address_in_numcodecs("lz4", "LZ4_decompress_safe_usingDict")
        return partial(_by_lz4, blocks, address) if blocks is not None and address else None
    if name == "zstd" and (address := address_in_numcodecs("zstd", "ZSTD_decompress")):
        return partial(_by_zstd, _ZSTD(address))
    return None


def _by_lz4(blocks: Callable[..., bool], address: int, stored: Bytes, target: Bytes) -> bool:
    return decompress_frame(stored, target, lambda *blocks_of: blocks(*blocks_of, address))


def _by_zstd(
    decompress: Callable[[int, int, int, int], int], stored: Bytes, target: Bytes
) -> bool:
    where_to = (target.ctypes.data, len(target))
    return decompress(*where_to, stored.ctypes.data, len(stored)) == len(target)


def read_zstd(read: Callable[[memoryview], int], num_stored: int, target: Bytes) -> bool:
    """Decompress what is read bit by bit, so that it need never be in memory as a whole.

    Args:
        read: Fills a buffer with the next bytes and returns how many there were.
        num_stored: How many bytes to read.
        target: Filled; contiguous, as long as all bytes.

    Returns:
        False as of `StraightCodec`, or where numcodecs is not there.
    """
    functions = _zstd_stream()
    stream = None if functions is None else functions.create()
    if functions is None or stream is None:
        return False
    try:
        functions.set_parameter(stream, _STABLE_OUT_BUFFER, 1)
        piece = np.empty(min(_STEP_BYTES, num_stored), np.uint8)
        filled = _Span(target.ctypes.data, len(target), 0)
        left, code = num_stored, 1
        while left:
            count = read(piece[:left].data)
            left -= count
            given = _Span(piece.ctypes.data, count, 0)
            while given.position < count and 0 < code < _LEAST_ERROR:
                code = functions.decompress(stream, ctypes.byref(filled), ctypes.byref(given))
            if not count or given.position < count or (left and code == 0):
                return False
        return code == 0 and filled.position == len(target)
    finally:
        functions.free(stream)


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
