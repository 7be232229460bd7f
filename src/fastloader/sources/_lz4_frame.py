"""Any part of an LZ4 frame, without all that comes before it.

A frame is blocks of some 64 KiB that may repeat what was in the 64 KiB before them. Those bytes are not
known where decompressing begins in the middle. So a few blocks more are decompressed twice, after
different bytes: what comes out alike does not depend on them.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["DecompressBlocks", "Lz4Frame", "decompress_frame"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
DecompressBlocks: TypeAlias = Callable[[memoryview, memoryview, int, memoryview], bool]
"""Takes a frame, where its blocks are, their length and what to fill; see `_lz4_blocks.c`."""

_MAGIC = b"\x04\x22\x4d\x18"
_HEADER_BYTES = 7
"""Without the length of the content, which Arrow does not state."""
_FLAGS, _ARE_INDEPENDENT = 0b01000000, 0b00100000
"""Version 1 without checksums; and blocks that repeat nothing of others."""
_BLOCK_BYTES = {0x40: 64 << 10, 0x50: 256 << 10, 0x60: 1 << 20, 0x70: 4 << 20}
_LENGTH_BYTES = 4
_STORED = 1 << 31
"""Added to the length of a block that is not compressed."""
_WINDOW_BYTES = 64 << 10
"""How far back a block may refer."""
_WARM_BYTES = 256 << 10
"""Decompressed before what is wanted: of images of a camera one block in thirty still depends on
what is before 128 KiB, and none of hundreds on what is before 256."""
_END = bytes(_LENGTH_BYTES)
_MARK_BYTES = 8
_MARKS = count(1)
"""Numbers to put after what is decompressed, as Arrow does not tell how much that was: each another
one, since memory may still hold the one of before."""


class Lz4Frame:
    """The blocks of a frame, found once by their lengths.

    **Threads:** any number at once.

    References:
        https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md.
    """

    def __init__(self, stored: Bytes, edges: Sequence[int], num_bytes: int) -> None:
        """Take the blocks; see `find`.

        Args:
            stored: The frame.
            edges: Position of each block, and last of what comes after them.
            num_bytes: Length when decompressed.
        """
        self._stored = stored
        self._header = stored[:_HEADER_BYTES].tobytes()
        self._block_bytes = _BLOCK_BYTES[self._header[5]]
        self._num_warm = -(-_WARM_BYTES // self._block_bytes)
        self._edges = np.array(edges, np.int64)
        self._num_bytes = num_bytes

    @classmethod
    def find(cls, stored: Bytes, num_bytes: int) -> "Lz4Frame | None":
        """Return a frame of which parts can be read, as far as its middle tells; None otherwise.

        Args:
            stored: The frame, and nothing after it.
            num_bytes: Length when decompressed.
        """
        edges = _find_blocks(stored, num_bytes)
        if edges is None or len(edges) <= 2:
            return None
        num_blocks = len(edges) - 1
        frame = cls(stored, edges, num_bytes)
        # If the last block is as long as is left for it, all before it are full.
        are_full = frame._decompressed(num_blocks - 1, num_blocks, 0) is not None
        middle = num_bytes // 2
        return frame if are_full and frame.part(middle, middle + 1) is not None else None

    @property
    def nbytes(self) -> int:
        """Memory that this takes."""
        return self._edges.nbytes

    def part(self, start: int, stop: int) -> Bytes | None:
        """Return some bytes; None if they may depend on more than what is just before them.

        Args:
            start: Position of the first.
            stop: Position after the last, at most the length of all.
        """
        size = self._block_bytes
        block = start // size
        num_warm = 0 if self._are_independent else self._num_warm
        first = max(0, block - num_warm)
        content = self._decompressed(first, -(-stop // size), 0)
        if content is None:
            return None
        if first and num_warm:
            other = self._decompressed(first, block, 255)
            window = slice(num_warm * size - _WINDOW_BYTES, num_warm * size)
            if other is None or not np.array_equal(content[window], other[window]):
                return None
        return content[start - first * size : stop - first * size]

    @property
    def _are_independent(self) -> bool:
        return bool(self._header[4] & _ARE_INDEPENDENT)

    def _decompressed(self, first: int, stop: int, before: int) -> Bytes | None:
        """Return some blocks; None if they are damaged or have not as many bytes as they should.

        Args:
            first: Number of the first block.
            stop: Number of the block after the last.
            before: What each byte is taken to be that comes before them.
        """
        size = self._block_bytes
        num_bytes = min(stop * size, self._num_bytes) - first * size
        parts: list[bytes | memoryview] = [self._header]
        if first:
            num_bytes += _WINDOW_BYTES
            parts += [_stored_length(_WINDOW_BYTES), bytes([before]) * _WINDOW_BYTES]
        parts.append(self._stored[self._edges[first] : self._edges[stop]].data)
        mark = next(_MARKS).to_bytes(_MARK_BYTES, "little")
        frame = b"".join([*parts, _stored_length(_MARK_BYTES), mark, _END])
        try:
            content = pa.Codec("lz4").decompress(frame, num_bytes + _MARK_BYTES)
        except (pa.ArrowException, OSError):
            return None
        if content[num_bytes:].to_pybytes() != mark:
            return None
        return np.frombuffer(content, np.uint8)[_WINDOW_BYTES if first else 0 : num_bytes]


def decompress_frame(stored: Bytes, target: Bytes, decompress: DecompressBlocks) -> bool:
    """Decompress a frame straight to where its bytes stay.

    Args:
        stored: The frame, and nothing after it.
        target: Filled; contiguous.
        decompress: Used for its blocks.

    Returns:
        False if the frame is damaged, or has another length or blocks of another kind: the target
        then holds anything.
    """
    edges = _find_blocks(stored, len(target))
    if edges is None:
        return False
    size = _BLOCK_BYTES[int(stored[5])]
    return decompress(stored.data, np.array(edges, np.int64).data, size, target.data)


def _stored_length(num_bytes: int) -> bytes:
    """Return what stands before a block that is not compressed."""
    return (num_bytes | _STORED).to_bytes(_LENGTH_BYTES, "little")


def _find_blocks(stored: Bytes, num_bytes: int) -> list[int] | None:
    """Return where each block of a frame begins, and last where they end.

    Args:
        stored: The frame.
        num_bytes: Length when decompressed.

    Returns:
        None if there are not as many, or of another kind than is read here.
    """
    header = stored[:_HEADER_BYTES].tobytes()
    if len(header) < _HEADER_BYTES or header[:4] != _MAGIC:
        return None
    if header[4] & ~_ARE_INDEPENDENT != _FLAGS or header[5] not in _BLOCK_BYTES:
        return None
    content, edges = stored.data, [_HEADER_BYTES]
    for _ in range(-(-num_bytes // _BLOCK_BYTES[header[5]])):
        length = _length_at(content, edges[-1]) % _STORED
        if not length:
            return None
        edges.append(edges[-1] + _LENGTH_BYTES + length)
    return edges if content[edges[-1] :] == _END else None


def _length_at(stored: memoryview, at: int) -> int:
    return int.from_bytes(stored[at : at + _LENGTH_BYTES], "little")
