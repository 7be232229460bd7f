"""Where the bytes of pixels are: in this process, or in a file that processes share."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from fastloader.shm import ArrayWriter, MemoryFile, MemoryWriter

__all__ = ["FilePixels", "PixelBytes", "PrivatePixels"]


class PixelBytes(Protocol):
    """A block of bytes, zeros at first unless all of them will be written.

    **Processes:** what a pickle carries differs by kind; the receiver maps or has the bytes.
    """

    def view(self) -> npt.NDArray[np.uint8]:
        """Return all bytes; what is written shows in it. Nobody writes to the view."""
        ...

    def writer(self) -> ArrayWriter | MemoryWriter:
        """Return what puts arrays in their places, for all processes."""
        ...


class PrivatePixels:
    """Bytes of this process; a pickle holds a copy of them."""

    def __init__(self, block: npt.NDArray[np.uint8]) -> None:
        """Take memory."""
        self._block = block

    def view(self) -> npt.NDArray[np.uint8]:
        """Return all bytes."""
        return self._block

    def writer(self) -> ArrayWriter:
        """Return what puts arrays in their places."""
        return ArrayWriter(self._block)


class FilePixels:
    """A part of a memory file, or of a file on disk that takes its place.

    **Processes:** carried by a pickle as far as the file is.
    """

    def __init__(
        self, file: MemoryFile, start_bytes: int, num_bytes: int, *, has_room: bool = True
    ) -> None:
        """Take a part of a file.

        Args:
            file: The file.
            start_bytes: Where the part starts.
            num_bytes: Length of the part.
            has_room: See `MemoryWriter`.
        """
        self.file = file
        """The file."""
        self.start_bytes = start_bytes
        """Where the part starts in it."""
        self.has_room = has_room
        """See `MemoryWriter`."""
        self._num_bytes = num_bytes

    def view(self) -> npt.NDArray[np.uint8]:
        """Return all bytes, mapped into this process for as long as they are in use."""
        return np.frombuffer(self.file.map(), np.uint8, self._num_bytes, self.start_bytes)

    def writer(self) -> MemoryWriter:
        """Return what puts arrays in their places, for all processes."""
        return MemoryWriter(self.file, self.start_bytes, has_room=self.has_room)
