"""Decompresses straight to where bytes stay: Arrow gives each buffer memory of its own.

By LZ4 and Zstandard at their addresses in numcodecs' modules, where these are there. The blocks of LZ4, of
which there are many, are gone through in C, where that was compiled.
"""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader._extension_modules import RAW_FILES, extension_module
from fastloader.sources._codec_addresses import address_in_numcodecs
from fastloader.sources._lz4_frame import decompress_frame

__all__ = ["StraightCodec", "straight_codec"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
StraightCodec: TypeAlias = Callable[[Bytes, Bytes], bool]
"""Decompresses the first array to the second, contiguous one, whose length must be that of all
bytes; False if they are damaged, or of a kind that Arrow has to read: what is there is then anything."""

_SIZE, _ADDRESS = ctypes.c_size_t, ctypes.c_void_p
# Such functions are called without the interpreter's lock.
_ZSTD = ctypes.CFUNCTYPE(_SIZE, _ADDRESS, _SIZE, _ADDRESS, _SIZE)


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
