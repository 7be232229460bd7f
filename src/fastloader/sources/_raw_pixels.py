"""Reads pixels that lie in files of this machine as they are wanted: many files in one call.

To open a file, look at its time, read 100 kB and close it takes 15 us, and as long again in Python, which
needs the interpreter's lock after each of the four: two threads then take twice as long as one. So it is
compiled (`_raw_files.c`).
"""

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import numpy.typing as npt

from fastloader._extension_modules import RAW_FILES, extension_module
from fastloader.shm import ArrayWriter, MemoryWriter

__all__ = ["RawReader", "raw_reader"]


class RawReader:
    """Reads pieces of files; see `raw_reader`.

    Args:
        read_files: Takes paths, each ended by a zero byte, five int64 for each (size and time of the
            file, position of the piece, its bytes, where it goes), and the descriptor of the file that is
            written to, -1 for memory. Returns how many files were read before one could not be.
    """

    def __init__(self, read_files: Callable[[bytes, bytes, int], int]) -> None:
        self._read_files = read_files

    def read(
        self,
        paths: Iterable[bytes],
        places: npt.NDArray[np.int64],
        sizes_bytes: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        write: ArrayWriter | MemoryWriter,
    ) -> int:
        """Read a piece of each file, without the interpreter's lock.

        Args:
            paths: Of the files.
            places: Size and time of the last change in nanoseconds, as they were, and where the piece
                begins, shape ``(files, 3)``.
            sizes_bytes: Of the pieces.
            offsets: Where they go.
            write: Has room for them.

        Returns:
            How many were read: all before the first that is not there, was changed, or cannot be read.
        """
        if isinstance(write, MemoryWriter):
            written, start = write.file.fileno(), write.start_bytes
        else:
            target = write.view(0, (1,), np.dtype(np.uint8))
            written, start = -1, target.__array_interface__["data"][0]
        records = np.column_stack([places, sizes_bytes, offsets + start])
        ended = b"".join(path + b"\0" for path in paths)
        return self._read_files(ended, records.tobytes(), written)


@cache
def raw_reader() -> RawReader | None:
    """Return what reads many files at once; None where that is not compiled."""
    read_files = getattr(extension_module(RAW_FILES), "read_files", None)
    return None if read_files is None else RawReader(read_files)
