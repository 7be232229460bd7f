"""A stream over something of known length, of which only the place is kept."""

import io
import os

__all__ = ["SizedStream"]


class SizedStream(io.RawIOBase):
    """Keeps where the next read begins; what reading means is for the subclass.

    Args:
        size_bytes: Length of what is read.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place; beyond the end is allowed, before the start is the start."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}
        self._position = max(0, origin[whence] + offset)
        return self._position
