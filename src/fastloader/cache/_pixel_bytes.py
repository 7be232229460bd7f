"""Where the bytes of pixels are: in this process, or in a file that processes share."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastloader.shm import MemoryFile, MemoryWriter

__all__ = ["FilePixels", "PixelBytes", "PrivatePixels"]


class PixelBytes(Protocol):
    """A block of bytes, zeros at first unless all of them will be written.

    **Processes:** what a pickle carries differs by kind; the receiver maps or has the bytes.
    """

    def view(self) -> npt.NDArray[np.uint8]:
        """Return all bytes; what `write` changes shows in it. Nobody writes to the view."""
        ...

    def write(self, offset_bytes: int, array: npt.NDArray[Any]) -> None:
        """Put a contiguous array in its place, for all processes."""
        ...


class PrivatePixels:
    """Bytes of this process; a pickle holds a copy of them."""

    def __init__(self, block: npt.NDArray[np.uint8]) -> None:
        """Take memory.

        Args:
            block: The bytes.
        """
        self._block = block

    def view(self) -> npt.NDArray[np.uint8]:
        """Return all bytes."""
        return self._block

    def write(self, offset_bytes: int, array: npt.NDArray[Any]) -> None:
        """Put an array in its place.

        Args:
            offset_bytes: Where its first byte goes.
            array: Contiguous.
        """
        target = self._block[offset_bytes : offset_bytes + array.nbytes]
        target[...] = array.reshape(-1).view(np.uint8)


class FilePixels:
    """A part of a memory file, or of a file on disk that takes its place.

    **Processes:** carried by a pickle as far as the file is.
    """

    def __init__(self, file: MemoryFile, start_bytes: int, num_bytes: int) -> None:
        """Take a part of a file.

        Args:
            file: The file.
            start_bytes: Where the part starts.
            num_bytes: Length of the part.
        """
        self.file = file
        """The file."""
        self.start_bytes = start_bytes
        """Where the part starts in it."""
        self._num_bytes = num_bytes

    def view(self) -> npt.NDArray[np.uint8]:
        """Return all bytes, mapped into this process for as long as they are in use."""
        return np.frombuffer(self.file.map(), np.uint8, self._num_bytes, self.start_bytes)

    def write(self, offset_bytes: int, array: npt.NDArray[Any]) -> None:
        """Put an array in its place.

        Args:
            offset_bytes: Where its first byte goes.
            array: Contiguous.
        """
        MemoryWriter(self.file, self.start_bytes)(offset_bytes, array)
