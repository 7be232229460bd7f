"""What is in a page of a Parquet file, decompressed as far as it is looked at."""

import numpy as np
import pyarrow as pa

from fastloader.sources._page_memory import PageBlocks
from fastloader.sources._parquet_flat import decompress_by_arrow
from fastloader.sources._parquet_levels import PageError, read_varint
from fastloader.sources._straight_reads import decompress_lz4_block, knows_lz4_blocks

__all__ = ["PageBytes", "is_quick"]

_STEP_BYTES = 128 << 10
_VARINT_BYTES = 5


class PageBytes:
    """Bytes of a page. Those of zstd are decompressed step by step if need be, others at once.

    Byte chunks of many images can be in one page, of which one image is wanted. At once takes two
    thirds of the time.
    """

    def __init__(
        self,
        stored: memoryview,
        num_bytes: int,
        codec: str,
        blocks: PageBlocks,
        *,
        is_whole: bool,
    ) -> None:
        """Take what is stored.

        Args:
            stored: As in the file.
            num_bytes: Length when decompressed.
            codec: Name of the compression in lower case.
            blocks: Gives memory to decompress to.
            is_whole: Whether most of it will be looked at.

        Raises:
            PageError: If the length is wrong, or they are damaged.
        """
        self.num_bytes = num_bytes
        """Length when decompressed."""
        self._stream: pa.NativeFile | None = None
        self.is_apart = False
        """Whether nothing that comes from here refers to what is stored, or to `blocks`."""
        if codec == "uncompressed":
            if len(stored) != num_bytes:
                raise PageError("a page is not as long as it says")
            self._content, self._num_known = stored, num_bytes
        elif not num_bytes:
            self._content, self._num_known = memoryview(b""), 0
        elif codec == "zstd" and not is_whole:
            self._content, self._num_known = blocks.take(num_bytes), 0
            source = pa.BufferReader(pa.py_buffer(stored))
            self._stream = pa.CompressedInputStream(source, codec)
        else:
            self._content = memoryview(_decompressed(stored, num_bytes, codec))
            self._num_known = num_bytes
            self.is_apart = True

    def get(self, start: int, stop: int) -> memoryview:
        """Return some bytes.

        Args:
            start: Position of the first.
            stop: Position after the last.

        Raises:
            PageError: If there are not as many, or they are damaged.
        """
        if stop > self.num_bytes:
            raise PageError("a page is cut off")
        while self._num_known < stop and self._stream is not None:
            step = self._content[self._num_known : max(stop, self._num_known + _STEP_BYTES)]
            try:
                num_read = self._stream.readinto(step)
            except (pa.ArrowException, OSError) as error:
                raise PageError(f"a page cannot be decompressed ({error})") from error
            if not num_read:
                raise PageError("a page is shorter than it says")
            self._num_known += num_read
        return self._content[start:stop]

    def all(self) -> memoryview:
        """Return all bytes.

        Raises:
            PageError: If they are damaged, or fewer or more than stated.
        """
        content = self.get(0, self.num_bytes)
        if self._stream is not None and self._stream.read(1):
            raise PageError("a page is longer than it says")
        return content


def is_quick(codec: str) -> bool:
    """Return whether pages are decompressed alone, which for other codecs takes a file in memory.

    Args:
        codec: Name of the compression in lower case.
    """
    return codec in {"snappy", "uncompressed", "zstd"} or (
        codec == "lz4" and knows_lz4_blocks()
    )


def _decompressed(stored: memoryview, num_bytes: int, codec: str) -> pa.Buffer:
    """Return all bytes.

    Raises:
        PageError: If they are damaged, or fewer or more than stated.
    """
    try:
        if codec == "lz4":
            content = pa.allocate_buffer(num_bytes)
            target = np.frombuffer(content, np.uint8)
            if decompress_lz4_block(np.frombuffer(stored, np.uint8), target):
                return content
        if codec == "zstd" or (codec == "snappy" and _snappy_length(stored) == num_bytes):
            # Fewer bytes than that are an error of these; of others Arrow does not tell.
            return pa.Codec(codec).decompress(pa.py_buffer(stored), num_bytes)
        return decompress_by_arrow(stored, num_bytes, codec)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise PageError(f"a page cannot be decompressed ({error})") from error


def _snappy_length(stored: memoryview) -> int:
    """Return how many bytes there are when decompressed; they begin with that.

    Raises:
        PageError: If they are cut off.

    References:
        https://github.com/google/snappy/blob/main/format_description.txt.
    """
    return read_varint(bytes(stored[:_VARINT_BYTES]), 0)[0]
