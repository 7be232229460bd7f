"""Memory of one process that a memory file can take the place of, at the same addresses."""

import ctypes
import mmap
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastloader.errors import SharedMemoryError
from fastloader.machine._huge_pages import HUGE_BYTES, gives_huge_pages_if_asked
from fastloader.machine._system_files import read_text
from fastloader.shm._mapping_over import can_map_over, map_over
from fastloader.shm._memory_file import MemoryFile

__all__ = ["PrivateBlock", "gives_huge_pages"]

_PIECE_BYTES = 64 << 20
"""Moved at once: so much is held twice for a moment."""


def gives_huge_pages(root: Path = Path("/")) -> bool:
    """Return whether a `PrivateBlock` is worth having on this system.

    Without huge pages it takes hardly less time than a memory file, and a fork has to copy the
    table of its pages. Where the system counts memory that could be written as if it were
    (``vm.overcommit_memory=2``), a forked child counts a private block once more.

    Args:
        root: Where the file systems ``proc`` and ``sys`` are mounted.
    """
    if not can_map_over():
        return False
    counted = read_text(f"{root}/proc/sys/vm/overcommit_memory").strip()
    return counted not in {"", "2"} and gives_huge_pages_if_asked(root)


class PrivateBlock:
    """Bytes of this process, zeros at first.

    To fill fresh memory takes a third of the time in huge pages that it takes in a memory file,
    for which the system has none unless its administrator says so (``shmem_enabled``).

    **Processes:** a forked child has the same bytes, held once for as long as neither writes.
    Others get at them by `move_to`.
    """

    def __init__(self, num_bytes: int) -> None:
        """Reserve memory; it is taken as it is written.

        Args:
            num_bytes: Length, 1 or more.

        Raises:
            SharedMemoryError: If the system does not have it.
        """
        self._num_bytes = num_bytes
        try:
            self._mapping = mmap.mmap(
                -1, num_bytes + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, OverflowError) as error:
            raise SharedMemoryError(
                f"{num_bytes} bytes of memory were asked for, but the system gave none ({error})."
            ) from error
        # The system may map at any page. What is skipped is never written, so takes no memory.
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._start = -address % HUGE_BYTES
        self._address = address + self._start
        whole_bytes = num_bytes // HUGE_BYTES * HUGE_BYTES  # not one more for a small rest
        if whole_bytes:
            with suppress(OSError):  # it may be forbidden to this process
                self._mapping.madvise(mmap.MADV_HUGEPAGE, self._start, whole_bytes)

    def view(self) -> npt.NDArray[np.uint8]:
        """Return all bytes; the memory lives as long as any view of it."""
        return np.frombuffer(self._mapping, np.uint8, self._num_bytes, self._start)

    def move_to(self, file: MemoryFile, start_bytes: int, *, is_written: bool) -> None:
        """Let a file hold the bytes from now on, for this process too: all views stay valid.

        Each piece is written to the file, which is then mapped over it, in one step of the
        system: other threads may read meanwhile. What they would write could be lost. When it
        fails, each piece is still in one of both places, and it can be tried again.

        Args:
            file: Long enough; must not shrink.
            start_bytes: Where the bytes go, a multiple of the size of a page.
            is_written: Whether the file holds the same bytes already.

        Raises:
            SharedMemoryError: If there is no room in memory, or in the table of mappings.
        """
        content = self.view().data
        for offset in range(0, self._num_bytes, _PIECE_BYTES):
            piece = content[offset : offset + _PIECE_BYTES]
            if not is_written:
                file.write(start_bytes + offset, piece)
            map_over(self._address + offset, len(piece), file, start_bytes + offset)
