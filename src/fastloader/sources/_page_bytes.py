"""What is in a page of a Parquet file, decompressed as far as it is looked at."""

import pyarrow as pa

from fastloader.sources._page_memory import PageBlocks
from fastloader.sources._parquet_flat import decompress_by_arrow
from fastloader.sources._parquet_levels import PageError

__all__ = ["PageBytes"]

_STEP_BYTES = 128 << 10


class PageBytes:
    """Bytes of a page. Those of zstd are decompressed step by step, others at once.

    Byte chunks of many images can be in one page, of which one image is wanted.
    """

    def __init__(
        self, stored: memoryview, num_bytes: int, codec: str, blocks: PageBlocks
    ) -> None:
        """Take what is stored.

        Args:
            stored: As in the file.
            num_bytes: Length when decompressed.
            codec: Name of the compression in lower case.
            blocks: Gives memory to decompress to.

        Raises:
            PageError: If the length is wrong.
        """
        self._num_bytes = num_bytes
        self._stream: pa.NativeFile | None = None
        if codec == "uncompressed":
            if len(stored) != num_bytes:
                raise PageError("a page is not as long as it says")
            self._content, self._num_known = stored, num_bytes
        elif codec == "zstd" or not num_bytes:
            self._content = blocks.take(num_bytes)
            self._num_known = 0
            if num_bytes:
                source = pa.BufferReader(pa.py_buffer(stored))
                self._stream = pa.CompressedInputStream(source, codec)
        else:
            try:
                self._content = memoryview(decompress_by_arrow(stored, num_bytes, codec))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise PageError(f"a page cannot be decompressed ({error})") from error
            self._num_known = num_bytes

    def get(self, start: int, stop: int) -> memoryview:
        """Return some bytes.

        Args:
            start: Position of the first.
            stop: Position after the last.

        Raises:
            PageError: If there are not as many, or they are damaged.
        """
        if stop > self._num_bytes:
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
        content = self.get(0, self._num_bytes)
        if self._stream is not None and self._stream.read(1):
            raise PageError("a page is longer than it says")
        return content
