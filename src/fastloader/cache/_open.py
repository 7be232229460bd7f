"""Opens the cache of a set of images: the one that is there already, or a new one."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastloader.cache._board import FillBoard
from fastloader.cache._checksums import UnitChecksums
from fastloader.cache._disk_file import DISK_HEADER_BYTES, open_disk_file
from fastloader.cache._image_cache import ImageCache
from fastloader.cache._layout import PixelLayout
from fastloader.cache._meeting import HEADER_BYTES, meet
from fastloader.cache._pixel_bytes import FilePixels
from fastloader.cache._promised import promise
from fastloader.shm import MemoryFile

__all__ = ["open_disk_cache", "open_shared_cache", "shared_name"]

_PAGE_BYTES = 4096
_BLOCK_BYTES = 512
"""Unit of `os.stat_result.st_blocks`, whatever the file system."""

CheckRoom = Callable[[], None]


def shared_name(name: str, layout: PixelLayout, edges: npt.NDArray[np.int64]) -> str:
    """Return what processes find a cache in memory by; arguments as for `open_shared_cache`."""
    return f"pixels {name} {_digest(layout, edges)}"


def open_shared_cache(
    name: str,
    layout: PixelLayout,
    edges: npt.NDArray[np.int64],
    check_room: CheckRoom,
) -> ImageCache:
    """Return the cache in memory of a name, that of another process if there is one.

    Args:
        name: Source and choice of the images.
        layout: Where each image lies.
        edges: First image of each unit, and last the number of images.
        check_room: Called before memory is reserved; raises if there is not enough.

    Raises:
        SharedMemoryError: If the system has no such memory.
    """
    flags_bytes = _whole_pages(len(layout))

    def create() -> MemoryFile:
        check_room()
        return MemoryFile.create(HEADER_BYTES + flags_bytes + layout.num_bytes)

    file = meet(shared_name(name, layout, edges), create)
    pixels = FilePixels(file, HEADER_BYTES + flags_bytes, layout.num_bytes)
    board = FillBoard(file, HEADER_BYTES, edges)
    cache = ImageCache(layout, pixels, board)
    promise(cache)
    return cache


def open_disk_cache(
    path: Path,
    content: str,
    layout: PixelLayout,
    edges: npt.NDArray[np.int64],
    check_room: CheckRoom,
) -> ImageCache:
    """Return the cache in a file, as far as it was filled at another time.

    Which units are known to be whole is kept in memory, once for all processes: each unit of
    an old file is checked against its checksum when it is first asked for.

    Args:
        path: The file.
        content: Fingerprint of the source and choice of the images.
        layout: Where each image lies.
        edges: First image of each unit, and last the number of images.
        check_room: Called before a new file is made; raises if there is no room for it.

    Raises:
        SharedMemoryError: If the file cannot be made, or is there in part and cannot be written
            to.
    """
    num_units = len(edges) - 1
    start = DISK_HEADER_BYTES + _whole_pages(8 * num_units)
    file = open_disk_file(
        path,
        f"{content} {_digest(layout, edges)}",
        start + max(1, layout.num_bytes),
        check_room,
    )
    # Not of what is at the path, where there may be another file by now.
    opened = os.fstat(file.fileno())
    board_file = meet(
        f"board {path.resolve()} {opened.st_dev} {opened.st_ino}",
        lambda: MemoryFile.create(HEADER_BYTES + _whole_pages(len(layout))),
    )
    board = FillBoard(board_file, HEADER_BYTES, edges)
    pixels = FilePixels(
        file,
        start,
        layout.num_bytes,
        # Not so where a file system cannot take room before it is needed, or compresses.
        has_room=getattr(opened, "st_blocks", 0) * _BLOCK_BYTES >= opened.st_size,
    )
    checksums = UnitChecksums(file, DISK_HEADER_BYTES, num_units, str(path))
    checksums.check_usable()
    return ImageCache(layout, pixels, board, checksums)


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _digest(layout: PixelLayout, edges: npt.NDArray[np.int64]) -> str:
    return f"{layout.digest()} {hashlib.blake2b(edges.tobytes(), digest_size=16).hexdigest()}"
