"""A buffer of an Arrow IPC file, decompressed as far as it is looked at."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.shm import ProcessLock
from fastloader.sources._lz4_frame import Lz4Frame
from fastloader.sources._mapped_pages import ask_for_pages, let_go_of_pages
from fastloader.sources._straight_codecs import straight_codec

__all__ = ["StoredBuffer", "decompress_all", "decompress_first"]

_STREAM_SHARE = 0.75
"""Up to this share of a buffer, a stream of it takes less time than all of it as a whole."""
_SMALL_BYTES = 1 << 20
"""A buffer of so many is decompressed as a whole: a stream of it, which is kept with it, takes as much."""
_LENGTH_BYTES = 8
_UNCOMPRESSED = -1  # stands for the length of a buffer that compression would not shorten

Bytes: TypeAlias = npt.NDArray[np.uint8]


class StoredBuffer:
    """Bytes of a buffer. What was decompressed once is not again.

    **Threads:** any; one decompresses at a time.
    """

    def __init__(self, stored: Bytes, codec: str) -> None:
        """Take what is stored.

        Args:
            stored: As it lies in a record batch that is compressed.
            codec: What by.
        """
        length = _length_of(stored)
        self._stored = stored[_LENGTH_BYTES:]
        self._codec = codec
        is_plain = length == _UNCOMPRESSED
        self.num_bytes = len(self._stored) if is_plain else length
        """Length when decompressed, as the file says."""
        self._content = self._stored if is_plain else np.empty(0, np.uint8)
        self._num_known = len(self._content)
        self._stream: pa.NativeFile | None = None
        self._lock = ProcessLock()

    def first(self, num_bytes: int) -> Bytes:
        """Return the first bytes.

        Args:
            num_bytes: How many, at most as many as there are.

        Raises:
            OSError: If they are damaged, or the file states more than there is memory for.
        """
        with self._lock:
            if num_bytes > self._num_known:
                try:
                    self._decompress(num_bytes)
                except MemoryError as error:  # also Arrow's
                    raise OSError(
                        f"a buffer states {self.num_bytes} bytes, for which there is no memory"
                    ) from error
            return self._content[:num_bytes]

    def find_frame(self) -> Lz4Frame | None:
        """Return what reads any part alone, if that can be."""
        is_packed = self._codec == "lz4" and self._content is not self._stored
        return Lz4Frame.find(self._stored, self.num_bytes) if is_packed else None

    def _decompress(self, num_bytes: int) -> None:
        is_whole = num_bytes > _STREAM_SHARE * self.num_bytes or self.num_bytes <= _SMALL_BYTES
        if self._stream is None and is_whole:
            codec = pa.Codec(self._codec)
            whole = codec.decompress(pa.py_buffer(self._stored), self.num_bytes)
            self._content, self._num_known = np.frombuffer(whole, np.uint8), self.num_bytes
            return
        if self._stream is None:
            self._content = np.empty(self.num_bytes, np.uint8)
            source = pa.BufferReader(pa.py_buffer(self._stored))
            self._stream = pa.CompressedInputStream(source, self._codec)
        while self._num_known < num_bytes:
            count = self._stream.readinto(self._content[self._num_known : num_bytes].data)
            if not count:
                raise OSError(
                    f"a buffer ends after {self._num_known} of {self.num_bytes} bytes"
                )
            self._num_known += count


def decompress_first(stored: Bytes, codec: str, is_mapped: bool, num_bytes: int) -> Bytes:
    """Return the first bytes of a compressed buffer, which nobody else has.

    Args:
        stored: As it lies in a record batch that is compressed.
        codec: What by.
        is_mapped: Whether that is in pages of a file, to be let go of.
        num_bytes: How many, at most as many as there are.

    Raises:
        OSError: If they are damaged, or the file states more than there is memory for.
    """
    first = StoredBuffer(stored, codec).first(num_bytes)
    if is_mapped:
        _let_go(stored)
    return first


def decompress_all(stored: Bytes, codec: str, is_mapped: bool, target: Bytes) -> None:
    """Decompress a buffer to where it stays, if that can be without memory for a copy.

    Args:
        stored: As for `decompress_first`.
        codec: What by.
        is_mapped: As for `decompress_first`.
        target: Filled; contiguous, and as long as the buffer or shorter.

    Raises:
        OSError: As `decompress_first`.
    """
    if is_mapped:
        ask_for_pages(stored)
    decompress = straight_codec(codec)
    is_whole = _length_of(stored) == len(target)
    if decompress is None or not is_whole or not decompress(stored[_LENGTH_BYTES:], target):
        target[:] = decompress_first(stored, codec, is_mapped, len(target))
    elif is_mapped:
        _let_go(stored)


def _length_of(stored: Bytes) -> int:
    """Return how long a buffer is when decompressed, or what says that it is not compressed."""
    return int.from_bytes(stored[:_LENGTH_BYTES].tobytes(), "little", signed=True)


def _let_go(stored: Bytes) -> None:
    start = stored.ctypes.data
    let_go_of_pages(range(start, start + len(stored)), stored)
