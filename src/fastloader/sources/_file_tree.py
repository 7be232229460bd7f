"""The files of a folder of images, named by their paths inside it: on this machine, or elsewhere."""

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeAlias, TypeVar

from fastloader.errors import SourceError

__all__ = ["FileTree", "LocalFile", "LocalTree", "OpenFile", "Stamp"]

T = TypeVar("T")
R = TypeVar("R")

Stamp: TypeAlias = tuple[int, int]
"""Size of a file and a number that is another when the file is: its time, or a hash of what
its server says of it."""


class OpenFile(Protocol):
    """A file that is read at any place."""

    def stamp(self) -> Stamp:
        """Return what tells whether the file was changed."""
        ...

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes from a place on: fewer where the file ends."""
        ...

    def read_each(self, places: Sequence[Sequence[int]]) -> Iterator[bytes]:
        """Yield the bytes of several places, given by offset and length, in their order."""
        ...

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill memory with the bytes from a place on.

        Raises:
            EOFError: If the file ends before.
        """
        ...


class FileTree(Protocol):
    """A folder with all that is below it; or one file, whose path inside is ``""``.

    **Processes:** picklable; holds texts only, and what it opens is of the process that asks.
    """

    is_local: bool
    """Whether reading costs this machine's time, not that of a network."""

    @property
    def where(self) -> str:
        """The root, as it was given."""
        ...

    def path(self, inside: str) -> str:
        """Return the whole path of a file or folder, as error messages name it."""
        ...

    def names(self, inside: str) -> Sequence[str]:
        """Return the names of the folders that a file or folder is in, and last its own."""
        ...

    def plain(self, inside: str) -> str:
        """Return a path inside as people write it."""
        ...

    def is_file(self, inside: str) -> bool:
        """Return True if there is a file."""
        ...

    def list_folder(self, inside: str) -> tuple[list[str], list[str]]:
        """Return the names of a folder's folders and of its files.

        Raises:
            SourceError: If there is no such folder.
        """
        ...

    def identity(self, inside: str) -> Hashable:
        """Return what two paths have in common that lead to one folder."""
        ...

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield what a function gives for each item, in order.

        At once for several, in threads, where most of the time is waiting for a network.
        """
        ...

    def stamp(self, inside: str) -> Stamp:
        """Return what tells whether a file was changed.

        Raises:
            FileNotFoundError: If it is not there.
        """
        ...

    def stamp_all(self, inside: str) -> tuple[bytes, int]:
        """Return a hash of the names and stamps of all files in a folder, at any depth.

        With it comes when the last of them was changed, in nanoseconds; 0 if that is not known.
        """
        ...

    def read(self, inside: str) -> bytes:
        """Return a whole file.

        Raises:
            FileNotFoundError: If it is not there.
        """
        ...

    def opened(self, inside: str) -> AbstractContextManager[OpenFile]:
        """Open a file for a block.

        Raises:
            FileNotFoundError: If it is not there.
        """
        ...

    def as_argument(self, inside: str) -> Any:
        """Return what libraries take that open files: a path, or a stream."""
        ...

    def as_zarr_store(self, inside: str) -> Mapping[str, Any]:
        """Return the arguments by which the zarr package opens a folder."""
        ...


class LocalFile:
    """A file of this machine."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        """Take a file.

        Args:
            descriptor: Open to read; closed by who opened it.
        """
        self._descriptor = descriptor

    def stamp(self) -> Stamp:
        """Return size and time of the last change, in nanoseconds."""
        state = os.fstat(self._descriptor)
        return state.st_size, state.st_mtime_ns

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes from a place on; see `OpenFile`."""
        content = os.pread(self._descriptor, num_bytes, offset)
        while len(content) < num_bytes:  # the system reads up to 2 GB at once
            missing = num_bytes - len(content)
            if not (more := os.pread(self._descriptor, missing, offset + len(content))):
                break
            content += more
        return content

    def read_each(self, places: Sequence[Sequence[int]]) -> Iterator[bytes]:
        """Yield the bytes of several places; see `OpenFile`."""
        for offset, num_bytes in places:
            yield self.read(offset, num_bytes)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill memory; see `OpenFile`.

        Raises:
            EOFError: If the file ends before.
        """
        while target:
            count = os.preadv(self._descriptor, [target], offset)
            if not count:
                raise EOFError("the file ends too early")
            target, offset = target[count:], offset + count


class LocalTree:
    """A folder of this machine, or one file; see `FileTree` for its methods."""

    is_local = True

    def __init__(self, root: str) -> None:
        """Take the path.

        Args:
            root: A folder or a file; need not be there.
        """
        self.where = root

    def path(self, inside: str) -> str:
        """Return the whole path."""
        return f"{self.where}/{inside}" if inside else self.where

    def names(self, inside: str) -> Sequence[str]:
        """Return the names along the real path of the root and then of what is inside."""
        return [*self._root_names, *(_readable(part) for part in PurePath(inside).parts)]

    @cached_property
    def _root_names(self) -> list[str]:
        return [_readable(part) for part in Path(self.where).resolve().parts]

    def plain(self, inside: str) -> str:
        """Return a path inside as text, which the system's names need not be."""
        return _readable(inside)

    def is_file(self, inside: str) -> bool:
        """Return True if there is a file."""
        return Path(self.path(inside)).is_file()

    def list_folder(self, inside: str) -> tuple[list[str], list[str]]:
        """Return the names of a folder's folders and of its files.

        Raises:
            SourceError: If there is no such folder, or it cannot be listed.
        """
        path = self.path(inside)
        try:
            with os.scandir(path) as entries:
                found = list(entries)
        except FileNotFoundError as error:
            raise SourceError(
                f"{path} is not there: expected a folder of images, or one image."
            ) from error
        except NotADirectoryError as error:
            raise SourceError(
                f"{path} is a file: expected a folder of images, or one image of its format."
            ) from error
        except OSError as error:
            raise SourceError(
                f"{path} cannot be listed ({error.strerror}): let it be read, or give the files or "
                f"folders that can be."
            ) from error
        folders: list[str] = []
        files: list[str] = []
        for entry in found:
            if _is_folder(entry):
                folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                files.append(entry.name)  # a pipe would be waited for
        return folders, files

    def identity(self, inside: str) -> Hashable:
        """Return device and number, which links to a folder have in common with it."""
        state = Path(self.path(inside)).stat()
        return state.st_dev, state.st_ino

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield what a function gives for each item, one after the other."""
        return map(function, items)

    def stamp(self, inside: str) -> Stamp:
        """Return size and time of the last change, in nanoseconds."""
        state = os.stat(self.path(inside))  # noqa: PTH116 - a Path takes time to make
        return state.st_size, state.st_mtime_ns

    def stamp_all(self, inside: str) -> tuple[bytes, int]:
        """Return a hash of the names and stamps of all files in a folder, and the last change."""
        lines, newest_ns = [], 0
        for place, _, names in os.walk(self.path(inside)):
            for name in names:
                try:
                    state = os.stat(f"{place}/{name}")  # noqa: PTH116 - see stamp
                except OSError:  # is gone by now, or a link that leads nowhere
                    continue
                lines.append(f"{place}/{name} {state.st_size} {state.st_mtime_ns}")
                newest_ns = max(newest_ns, state.st_mtime_ns)
        text = "\n".join(sorted(lines)).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, digest_size=16).digest(), newest_ns

    def read(self, inside: str) -> bytes:
        """Return a whole file."""
        with open(self.path(inside), "rb", buffering=0) as file:  # noqa: PTH123 - see stamp
            return file.read()

    @contextmanager
    def opened(self, inside: str) -> Iterator[OpenFile]:
        """Open a file for a block."""
        with open(self.path(inside), "rb", buffering=0) as file:  # noqa: PTH123 - see stamp
            yield LocalFile(file.fileno())

    def as_argument(self, inside: str) -> Any:
        """Return the whole path."""
        return self.path(inside)

    def as_zarr_store(self, inside: str) -> Mapping[str, Any]:
        """Return the whole path."""
        return {"store": self.path(inside)}


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _readable(name: str) -> str:
    """Return a name with bytes that are no UTF-8 written out, which Arrow refuses."""
    return os.fsencode(name).decode(errors="backslashreplace")
