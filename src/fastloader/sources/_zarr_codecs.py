"""Decompresses the bytes of a Zarr chunk, which must give exactly as many as its sizes say."""

import importlib
import zlib
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.shm import ProcessLock

__all__ = ["decompress", "strip_checksum"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_WINDOW_BITS = {"gzip": 31, "zlib": 15}
_importing = ProcessLock()


def strip_checksum(content: memoryview) -> memoryview:
    """Return bytes without the CRC-32C that follows them.

    Args:
        content: Bytes, then four of their checksum, little endian.

    Raises:
        ValueError: If they do not belong together.
    """
    crc32c = importlib.import_module("google_crc32c")  # comes with zarr
    body, stated = content[:-4], int.from_bytes(content[-4:], "little")
    if len(content) < 4 or crc32c.value(body.tobytes()) != stated:
        raise ValueError("the checksum does not fit the bytes")
    return body


def decompress(name: str | None, content: memoryview, out: Bytes) -> None:
    """Decompress a chunk.

    Args:
        name: Of the compressor; None for bytes as they are.
        content: As stored.
        out: Written to, as many bytes as there must be.

    Raises:
        ValueError: If it gives another number of bytes.
        RuntimeError: If the compressor finds that they are damaged.
    """
    if name is None:
        _check(len(content), out)
        out[:] = np.frombuffer(content, np.uint8)
    elif name in _WINDOW_BITS:
        stream = zlib.decompressobj(_WINDOW_BITS[name])
        whole = stream.decompress(content, out.nbytes + 1)
        _check(len(whole), out)
        if not stream.eof:
            raise ValueError("the bytes end too early")
        out[:] = np.frombuffer(whole, np.uint8)
    else:
        # These write what they have to where there is room: fewer bytes would go unnoticed.
        claimed = _CLAIMED_BYTES[name](content)
        if claimed is not None:
            _check(claimed, out)
        _codec(name).decompress(content, out)


@cache
def _codec(name: str) -> Any:
    """Import a codec, one thread at a time: numcodecs imports its modules in a circle."""
    with _importing:
        importlib.import_module("numcodecs")
        return importlib.import_module(f"numcodecs.{name}")


def _check(num_bytes: int, out: Bytes) -> None:
    if num_bytes != out.nbytes:
        raise ValueError(f"expected {out.nbytes} bytes, got {num_bytes}")


def _claimed_by_blosc(content: memoryview) -> int:
    if len(content) < 16:
        raise ValueError("no Blosc header")
    if int.from_bytes(content[12:16], "little") != len(content):
        raise ValueError("the length in the Blosc header is another")
    return int.from_bytes(content[4:8], "little")


def _claimed_by_lz4(content: memoryview) -> int:
    return int.from_bytes(content[:4], "little")


def _claimed_by_zstd(content: memoryview) -> int | None:
    """Return the size in the frame's header (RFC 8878, 3.1.1.1), None if there is none.

    Raises:
        ValueError: If this is no frame.
    """
    if content[:4] != _ZSTD_MAGIC or len(content) < 6:
        raise ValueError("no Zstandard frame")
    descriptor = content[4]
    is_single_segment = bool(descriptor & 0x20)
    start = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    size = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    if not size:
        return None
    value = int.from_bytes(content[start : start + size], "little")
    return value + 256 if size == 2 else value


_CLAIMED_BYTES = {"blosc": _claimed_by_blosc, "lz4": _claimed_by_lz4, "zstd": _claimed_by_zstd}
