"""Shared memory in which children make parts of a job, used again once the parent took them."""

from multiprocessing.connection import wait
from typing import Self

import numpy as np
import numpy.typing as npt

from fastloader.shm import MemoryFile
from fastloader.sources._number_pipe import NumberPipe

__all__ = ["PartBuffers"]


class PartBuffers:
    """Equal buffers, and which of them are free.

    Memory that was used before costs no page faults, and no process waits for the lock that the
    system takes when one file is written to: 192 MB took two processes as long as one.

    **Processes:** made by the parent, which gives buffers back. A child that inherits the
    descriptors takes one before it makes a part; it gets none once the parent is gone.
    """

    def __init__(self, file: MemoryFile, free: NumberPipe, buffer_bytes: int) -> None:
        """Take over what buffers are made of.

        Args:
            file: Holds all buffers.
            free: Numbers of the buffers that nobody uses.
            buffer_bytes: Length of each.
        """
        self._file = file
        self._free = free
        self._buffer_bytes = buffer_bytes
        self._block = np.frombuffer(file.map(), np.uint8)

    @classmethod
    def create(cls, num_buffers: int, buffer_bytes: int) -> Self:
        """Make buffers, all free.

        Args:
            num_buffers: How many.
            buffer_bytes: Length of each, 1 or more.

        Raises:
            SharedMemoryError: If the system has no such memory.
        """
        file = MemoryFile.create(num_buffers * buffer_bytes)
        return cls(file, NumberPipe.of(range(num_buffers)), buffer_bytes)

    @property
    def descriptors(self) -> list[int]:
        """What a child needs, in the order of `inherited`."""
        return [self._file.fileno(), self._free.fileno()]

    @classmethod
    def inherited(cls, descriptors: list[int], buffer_bytes: int) -> Self:
        """Return the buffers of the parent, in a child.

        Args:
            descriptors: As the parent's.
            buffer_bytes: Length of each buffer.
        """
        return cls(MemoryFile(descriptors[0]), NumberPipe(descriptors[1]), buffer_bytes)

    def take(self, timeout_seconds: float) -> int | None:
        """Return the number of a buffer that was free, None if none was for some time.

        Args:
            timeout_seconds: How long to wait for one.

        Raises:
            EOFError: If the parent gives none back any more.
        """
        if not wait([self._free.fileno()], timeout_seconds):
            return None
        number = self._free.take()
        if number is None:
            raise EOFError("no buffer is given back any more")
        return number

    def view(self, number: int) -> npt.NDArray[np.uint8]:
        """Return a buffer."""
        start = number * self._buffer_bytes
        return self._block[start : start + self._buffer_bytes]

    def give_back(self, number: int) -> None:
        """Let a buffer be used again."""
        self._free.put(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._free.__exit__()
        self._file.close()
