"""Writes arrays into a memory file."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastloader.shm._memory_file import MemoryFile

if TYPE_CHECKING:
    import mmap

__all__ = ["MemoryWriter"]


class MemoryWriter:
    """Puts arrays at positions in a memory file.

    Calling it copies an array that exists already; `view` lets the bytes be made where they
    stay.

    **Processes:** whoever has the file can make one and write to parts of its own.
    """

    def __init__(
        self, file: MemoryFile, start_bytes: int = 0, *, has_room: bool = True
    ) -> None:
        """Write to a file, which stays the caller's.

        Args:
            file: Written to; its length must not shrink.
            start_bytes: Where position 0 is in the file.
            has_room: False for a file on disk that may find the disk full: whoever writes to a
                `view` of it is then ended by the system, where a call gives an error.
        """
        self.has_room = has_room
        """Whether a `view` can be written to in any case."""
        self.file = file
        """Where the bytes go."""
        self.start_bytes = start_bytes
        """Where position 0 is in `file`."""
        self._mapping: mmap.mmap | None = None

    def __call__(self, offset_bytes: int, array: npt.NDArray[Any]) -> None:
        """Copy an array into the file.

        Args:
            offset_bytes: Position of its first byte, counted from `start_bytes`.
            array: Contiguous, any dtype.
        """
        content = array.reshape(-1).view(np.uint8).data
        self.file.write(self.start_bytes + offset_bytes, content)

    def view(
        self, offset_bytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        """Return a part of the file as an array to write to.

        Args:
            offset_bytes: Position of its first byte, counted from `start_bytes`.
            shape: Sizes, all inside the file.
            dtype: Type of the elements.
        """
        if self._mapping is None:
            self._mapping = self.file.map()
        return np.ndarray(shape, dtype, self._mapping, self.start_bytes + offset_bytes)
