"""A folder of images at a URL."""

import hashlib
import io
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from fastloader.errors import FastLoaderError, SourceError
from fastloader.shm import ProcessLock
from fastloader.sources._file_tree import Stamp
from fastloader.sources._location import Location, StorageOptions
from fastloader.sources._sized_stream import SizedStream
from fastloader.sources._url_files import UrlFiles, url_files

__all__ = ["RemoteTree"]

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16
_GAP_BYTES = 64 << 10
"""What is read along between two places rather than asked for one after the other."""
_SPAN_BYTES = 32 << 20
_BUFFER_BYTES = 64 << 10
"""Of a stream: a header with all its tags mostly needs one or two requests."""


class RemoteTree:
    """A folder at a URL, or one file; see `FileTree` for its methods.

    **Processes:** each connects for itself. What a forked child inherits is kept and not used:
    to take it down would end connections that are the parent's too.
    """

    is_local = False

    def __init__(self, url: str, storage_options: StorageOptions = None) -> None:
        """Take the URL; nothing is reached yet.

        Args:
            url: Of a folder or file.
            storage_options: Arguments of fsspec's file system.
        """
        self.where = url
        self._location = Location(url, storage_options)
        self._connecting = ProcessLock()
        self._connected: dict[int, tuple[UrlFiles, str]] = {}

    def __getstate__(self) -> tuple[str, dict[str, Any]]:
        return self.where, self._location.storage_options

    def __setstate__(self, state: tuple[str, dict[str, Any]]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def path(self, inside: str) -> str:
        """Return the URL, without the query of the root."""
        root = self.where.partition("?")[0].rstrip("/")
        return f"{root}/{inside}" if inside else self.where

    def names(self, inside: str) -> Sequence[str]:
        """Return the names along the path of the URL."""
        root = urlsplit(self.where.partition("?")[0].rpartition("::")[2])
        names = [root.netloc, *unquote(root.path).split("/"), *self.plain(inside).split("/")]
        return ["", *filter(None, names)]

    def plain(self, inside: str) -> str:
        """Return a path as people write it: web servers list names as parts of URLs."""
        return unquote(inside) if self._location.is_of_web else inside

    def is_file(self, inside: str) -> bool:
        """Return True if there is a file."""
        try:
            self.stamp(inside)
        except FileNotFoundError:
            return False
        return True

    def list_folder(self, inside: str) -> tuple[list[str], list[str]]:
        """Return the names of a folder's folders and of its files.

        Raises:
            SourceError: If it cannot be listed.
        """
        files, root = self._connect()
        try:
            with self._naming(inside):
                folders, names = files.list_folder(_join(root, inside))
        except FileNotFoundError as error:
            raise SourceError(
                f"{self.path(inside)} is not there, or cannot be listed: expected a folder of "
                f"images, or one image. Where a server has no lists, give a list of all URLs."
            ) from error
        return folders, names

    def identity(self, inside: str) -> Hashable:
        """Return the path: stores have no links."""
        return inside.strip("/")

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield what a function gives for each item, for several at once."""
        wanted = list(items)
        if len(wanted) < 2:
            yield from map(function, wanted)
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(wanted)), "fastloader-remote") as pool:
            try:
                yield from pool.map(function, wanted)
            finally:
                pool.shutdown(cancel_futures=True)

    def stamp(self, inside: str) -> Stamp:
        """Return size and a hash of what the server says that changes with the file."""
        files, root = self._connect()
        with self._naming(inside):
            return files.stamp(_join(root, inside))

    def stamp_all(self, inside: str) -> tuple[bytes, int]:
        """Return a hash of the names and stamps of all files in a folder.

        Of nothing for web servers, which would be asked once for each file.
        """
        files, root = self._connect()
        found: dict[str, Stamp] = {}
        if not self._location.is_of_web:
            with self._naming(inside):
                found = files.stamp_all(_join(root, inside))
        text = repr(sorted(found.items())).encode()
        return hashlib.blake2b(text, digest_size=16).digest(), 0

    def read(self, inside: str) -> bytes:
        """Return a whole file."""
        files, root = self._connect()
        with self._naming(inside):
            return files.read(_join(root, inside))

    @contextmanager
    def opened(self, inside: str) -> Iterator["_RemoteFile"]:
        """Give a file to read from; nothing is reached yet."""
        yield _RemoteFile(self, inside)

    def as_argument(self, inside: str) -> Any:
        """Return a stream."""
        stream = _Stream(self, inside)
        return io.BufferedReader(stream, _BUFFER_BYTES)

    def as_zarr_store(self, inside: str) -> Mapping[str, Any]:
        """Return a store of the zarr package."""
        files, root = self._connect()
        return {"store": files.for_zarr(_join(root, inside))}

    def read_range(self, inside: str, start: int, stop: int) -> bytes:
        """Return the bytes between two places of a file, fewer where it ends.

        Args:
            inside: Its path.
            start: First byte.
            stop: The one after the last.
        """
        files, root = self._connect()
        with self._naming(inside):
            return files.read(_join(root, inside), start, stop)

    def _connect(self) -> tuple[UrlFiles, str]:
        process = os.getpid()
        if process not in self._connected:
            with self._connecting:
                if process not in self._connected:
                    system, root = self._location.file_system()
                    self._connected[process] = url_files(system), root
        return self._connected[process]

    @contextmanager
    def _naming(self, inside: str) -> Iterator[None]:
        """Say which file it was when it cannot be reached.

        Raises:
            FastLoaderError: If what runs inside raises it.
            FileNotFoundError: If the file is not there.
            SourceError: If anything else goes wrong.
        """
        try:
            yield
        except (FileNotFoundError, FastLoaderError):
            raise
        except (
            Exception
        ) as error:  # the libraries behind file systems raise errors of their own
            raise SourceError(
                f"{self.path(inside)} cannot be read ({type(error).__name__}: "
                f"{str(error)[:200]})."
            ) from error


class _RemoteFile:
    def __init__(self, tree: RemoteTree, inside: str) -> None:
        self._tree = tree
        self._inside = inside

    def stamp(self) -> Stamp:
        return self._tree.stamp(self._inside)

    def read(self, offset: int, num_bytes: int) -> bytes:
        return self._tree.read_range(self._inside, offset, offset + num_bytes)

    def read_each(self, places: Sequence[Sequence[int]]) -> Iterator[bytes]:
        first = 0
        while first < len(places):
            start, count = places[first]
            stop, last = start + count, first + 1
            while (
                last < len(places)
                and 0 <= places[last][0] - stop <= _GAP_BYTES
                and sum(places[last]) - start <= _SPAN_BYTES
            ):
                stop, last = sum(places[last]), last + 1
            content = self.read(start, stop - start)
            for offset, count in places[first:last]:
                yield content[offset - start : offset - start + count]
            first = last

    def read_into(self, offset: int, target: memoryview) -> None:
        content = self.read(offset, len(target))
        if len(content) != len(target):
            raise EOFError("the file ends too early")
        target[:] = content


class _Stream(SizedStream):
    """A file as a stream, which reads a range at a time."""

    def __init__(self, tree: RemoteTree, inside: str) -> None:
        super().__init__(tree.stamp(inside)[0])
        self.name = tree.names(inside)[-1]
        self._tree = tree
        self._inside = inside

    def readinto(self, target: Any) -> int:
        stop = min(self._size_bytes, self._position + len(target))
        if stop <= self._position:
            return 0
        content = self._tree.read_range(self._inside, self._position, stop)
        target[: len(content)] = content
        self._position += len(content)
        return len(content)


def _join(root: str, inside: str) -> str:
    return f"{root.rstrip('/')}/{inside}" if inside else root
