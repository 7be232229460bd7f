"""Reads pixels that lie in files of this machine: many files in one call.

To open a file, look at its time, read 100 kB and close it takes 15 us, and as long again in Python, which
needs the interpreter's lock after each of the four: two threads then take twice as long as one. Strips and
tiles need it several times each, and so do chunks. So all are compiled (`_raw_files.c`, `_segments.c`,
`_chunks.c`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader._extension_modules import RAW_FILES, extension_module
from fastloader.shm import ArrayWriter, MemoryWriter
from fastloader.sources._codec_addresses import address_of_zlib, codec_addresses

__all__ = ["RawReader", "ReadPieces", "raw_reader"]


_ReadFiles: TypeAlias = Callable[[bytes, bytes, int], int]
_ReadSegments: TypeAlias = Callable[[bytes, bytes, int, int], int]
_ReadChunks: TypeAlias = Callable[[bytes, bytes, int, tuple[int, ...]], int]
ReadPieces: TypeAlias = Callable[
    [
        Iterable[bytes],
        Iterable[Sequence[int]],
        Iterable[npt.NDArray[np.int64]],
        Sequence[int],
        int | None,
    ],
    int,
]
"""See `RawReader.read_segments`."""


class RawReader:
    """Reads images of files; see `raw_reader`.

    Args:
        read_files: Takes paths, each ended by a zero byte, five int64 for each (size and time of the
            file, position of the piece, its bytes, where it goes), and the descriptor of the file that is
            written to, -1 for memory. Returns how many files were read before one could not be.
        read_segments: The same for strips and tiles, of which `_segments.c` says what each record is, with
            the address of a function that decompresses them.
        read_chunks: The same for arrays of Zarr, see `_chunks.c`.
    """

    def __init__(
        self, read_files: _ReadFiles, read_segments: _ReadSegments, read_chunks: _ReadChunks
    ) -> None:
        self._read_files = read_files
        self._read_segments = read_segments
        self._read_chunks = read_chunks

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
        return self._read_files(_ended(paths), records.tobytes(), written)

    def read_segments(
        self,
        paths: Iterable[bytes],
        kinds: Iterable[Sequence[int]],
        places: Iterable[npt.NDArray[np.int64]],
        targets: Sequence[int],
        written: int | None,
    ) -> int:
        """Read and decode an image of each file, without the interpreter's lock.

        Args:
            paths: Of the files.
            kinds: How the pixels of each lie in it, see `fastloader.sources._compiled_kind.CompiledKind`.
            places: Size and time of the last change of each, as they were, then position and length of
                each strip or tile.
            targets: Where the pixels of each go: an address, or a position in a file.
            written: Descriptor of that file; None for memory.

        Returns:
            How many were read: all before the first that is not there, was changed, is damaged or
            cannot be read.
        """
        parts: list[npt.NDArray[np.int64]] = []
        for kind, numbers, target in zip(kinds, places, targets, strict=True):
            num_numbers = 2 + len(numbers) + len(kind)
            parts.append(np.array([num_numbers, *numbers[:2].tolist(), target, *kind]))
            parts.append(numbers[2:])
        records = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return self._read_segments(
            _ended(paths), records.tobytes(), _descriptor(written), address_of_zlib()
        )

    def read_chunks(
        self,
        paths: Iterable[bytes],
        kinds: Iterable[Sequence[int]],
        places: Iterable[npt.NDArray[np.int64]],
        targets: Sequence[int],
        written: int | None,
    ) -> int:
        """Read and decode Zarr arrays, without the interpreter's lock; arguments as for segments.

        Args:
            paths: Of each array two: its metadata, and what the paths of all its files begin with.
            kinds: What `_chunks.c` has in its records from the sizes of the array on.
            places: Size and time of the last change of the metadata of each, as they were, and the time
                after which no file was changed.
            targets: Where the pixels of each go.
            written: Descriptor of the file to write to.

        Returns:
            How many were read.
        """
        records = np.array(
            [
                [*place[:2].tolist(), target, *kind, place[2]]
                for place, target, kind in zip(places, targets, kinds, strict=True)
            ],
            np.int64,
        )
        return self._read_chunks(
            _ended(paths), records.tobytes(), _descriptor(written), codec_addresses()
        )


def _ended(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


def _descriptor(written: int | None) -> int:
    return -1 if written is None else written


@cache
def raw_reader() -> RawReader | None:
    """Return what reads many files at once; None where that is not compiled."""
    module = extension_module(RAW_FILES)
    # Windows' has nothing in it, and one that was built before and left there may have less.
    if module is None or not hasattr(module, "read_arrays"):
        return None
    return RawReader(module.read_files, module.read_segments, module.read_arrays)
