"""The cache files of a folder: which there are, and which to remove."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastloader.cache._disk_file import MAGIC, is_in_use, remove_unused
from fastloader.errors import SharedMemoryError

__all__ = ["CacheFile", "find_cache_files", "remove_cache_files"]


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file of decoded pixels."""

    path: Path
    num_bytes: int
    """Its length, for all of which there is room on most disks."""
    last_used: float
    """When a dataset last opened it, in seconds since 1970."""
    is_in_use: bool
    """Whether a process has it, or that cannot be told."""


def find_cache_files(folder: Path) -> list[CacheFile]:
    """Return the cache files in a folder, in the order in which they were last used.

    Files that only have such a name are left out, and so are those that are gone before they are looked at.

    Args:
        folder: Need not be there.

    Raises:
        SharedMemoryError: If the folder cannot be read.
    """
    try:
        paths = [path for path in folder.iterdir() if path.suffix == ".pixels"]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SharedMemoryError(f"The cache folder cannot be read: {error}.") from error
    found = [file for path in paths if (file := _look_at(path)) is not None]
    return sorted(found, key=lambda file: (file.last_used, file.path))


def remove_cache_files(files: Iterable[CacheFile], max_bytes: int) -> Sequence[CacheFile]:
    """Remove files, the first one first, until the rest takes no more than some bytes.

    Files that a process has open are left, and counted. Datasets that are made later decode their
    images anew.

    Args:
        files: As `find_cache_files` gave them.
        max_bytes: What may be left.

    Returns:
        Those that were removed.

    Raises:
        SharedMemoryError: If one cannot be removed.
    """
    files = list(files)
    left_bytes = sum(file.num_bytes for file in files)
    removed = []
    for file in files:
        if left_bytes <= max_bytes:
            break
        try:
            if not remove_unused(file.path):
                continue
        except OSError as error:
            raise SharedMemoryError(f"{file.path} cannot be removed: {error}.") from error
        removed.append(file)
        left_bytes -= file.num_bytes
    return removed


def _look_at(path: Path) -> CacheFile | None:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
            state = path.stat()
            return CacheFile(path, state.st_size, state.st_mtime, is_in_use(file.fileno()))
    except OSError:
        return None
