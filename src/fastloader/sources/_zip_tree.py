"""Zip archives in a tree of files: zipped Zarr stores, which appear as folders."""

import functools
import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, TypeVar

from fastloader.errors import SourceError
from fastloader.sources._file_tree import FileTree, OpenFile, Stamp

__all__ = ["ZIP_SUFFIXES", "UnzippedTree"]

T = TypeVar("T")
R = TypeVar("R")

ZIP_SUFFIXES = (".zarr.zip", ".ozx")
"""The second is that of RFC 9 of OME-NGFF."""
_MOST_OPEN = 64
"""Archives whose lists of files are kept."""
_HEADER_BYTES = 30
_SLACK_BYTES = 64
"""A file's own header may be longer than what the archive's list says of it."""


class UnzippedTree:
    """A tree whose zip archives are folders; see `FileTree` for its methods.

    Archives are told by their names, but for a root that is one.

    **Processes:** keeps the lists of files of some archives, which a pickle goes without, and no
    open file.
    """

    def __init__(self, tree: FileTree) -> None:
        """Take a tree.

        Args:
            tree: Folder with archives in it, or one archive.
        """
        self._tree = tree
        self.where = tree.where
        self.is_local = tree.is_local
        self._archive = functools.lru_cache(_MOST_OPEN)(self._open_archive)

    def __reduce__(self) -> tuple[Any, ...]:
        return UnzippedTree, (self._tree,)

    def path(self, inside: str) -> str:
        """Return the whole path."""
        return self._tree.path(inside)

    def names(self, inside: str) -> Sequence[str]:
        """Return the names along the path."""
        return self._tree.names(inside)

    def plain(self, inside: str) -> str:
        """Return a path inside as people write it."""
        return self._tree.plain(inside)

    def is_packed(self, inside: str) -> bool:
        """Return True for what is in an archive."""
        return self._place(inside)[0] is not self._tree

    def is_file(self, inside: str) -> bool:
        """Return True if there is a file, which an archive is not."""
        tree, rest = self._place(inside)
        return tree.is_file(rest)

    def list_folder(self, inside: str) -> tuple[list[str], list[str]]:
        """Return the names of a folder's folders, archives among them, and of its files.

        Raises:
            SourceError: If there is no such folder, or no archive.
        """
        tree, rest = self._place(inside)
        folders, files = tree.list_folder(rest)
        if tree is not self._tree:
            return folders, files
        archives = [name for name in files if name.lower().endswith(ZIP_SUFFIXES)]
        return folders + archives, [name for name in files if name not in set(archives)]

    def identity(self, inside: str) -> Hashable:
        """Return the path, for folders in archives."""
        tree, rest = self._place(inside)
        return tree.identity(rest)

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield what a function gives for each item, in order."""
        return self._tree.each(function, items)

    def stamp(self, inside: str) -> Stamp:
        """Return what tells whether a file was changed: in an archive, the archive."""
        tree, rest = self._place(inside)
        return tree.stamp(rest)

    def stamp_all(self, inside: str) -> tuple[bytes, int]:
        """Return a hash of the names of all files in a folder, and of what changes with them."""
        tree, rest = self._place(inside)
        return tree.stamp_all(rest)

    def read(self, inside: str) -> bytes:
        """Return a whole file.

        Raises:
            ValueError: If it is damaged in an archive, or compressed by another method than deflate.
        """
        tree, rest = self._place(inside)
        return tree.read(rest)

    def opened(self, inside: str) -> AbstractContextManager[OpenFile]:
        """Open a file for a block."""
        tree, rest = self._place(inside)
        return tree.opened(rest)

    def as_argument(self, inside: str) -> Any:
        """Return a path or stream."""
        tree, rest = self._place(inside)
        return tree.as_argument(rest)

    def as_zarr_store(self, inside: str) -> Mapping[str, Any]:
        """Return the arguments by which the zarr package opens a folder."""
        tree, rest = self._place(inside)
        return tree.as_zarr_store(rest)

    def _place(self, inside: str) -> tuple["FileTree | _ZipTree", str]:
        """Return the tree that has a path, and the path there."""
        if self._root is not None:
            return self._root, inside
        lower = inside.lower()
        if not any(suffix in lower for suffix in ZIP_SUFFIXES):
            return self._tree, inside
        parts = inside.split("/")
        for depth, part in enumerate(parts, 1):
            if part.lower().endswith(ZIP_SUFFIXES):
                archive = self._archive("/".join(parts[:depth]))
                if archive is not None:
                    return archive, "/".join(parts[depth:])
        return self._tree, inside

    @cached_property
    def _root(self) -> "_ZipTree | None":
        """The root, if that is an archive."""
        is_named_so = self._tree.names("")[-1].lower().endswith((*ZIP_SUFFIXES, ".zip"))
        return self._open_archive("") if is_named_so else None

    def _open_archive(self, path: str) -> "_ZipTree | None":
        return _ZipTree(self._tree, path) if self._tree.is_file(path) else None


class _ZipTree:
    """An archive as a folder; see `FileTree` for its methods.

    References:
        APPNOTE.TXT 6.3.10, 4.3.7, on local headers; RFC 9 of OME-NGFF.
    """

    def __init__(self, tree: FileTree, archive: str) -> None:
        self._tree = tree
        self._archive = archive

    def is_file(self, inside: str) -> bool:
        return inside in self._entries

    def list_folder(self, inside: str) -> tuple[list[str], list[str]]:
        found = self._folders.get(inside.strip("/"))
        if found is None:
            raise SourceError(f"{self._path(inside)} is not there.")
        return list(found[0]), found[1]

    def identity(self, inside: str) -> Hashable:
        return self._tree.identity(self._archive), inside.strip("/")

    def stamp(self, inside: str) -> Stamp:
        return self._entry(inside).file_size, self._tree.stamp(self._archive)[1]

    def stamp_all(self, inside: str) -> tuple[bytes, int]:
        entries = sorted(
            (name, entry.file_size, entry.CRC)
            for name, entry in self._entries.items()
            if name.startswith(f"{inside.strip('/')}/")
        )
        text = repr(entries).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, digest_size=16).digest(), 0

    def read(self, inside: str) -> bytes:
        entry = self._entry(inside)
        record = self._read_record(entry)
        lengths = (int.from_bytes(record[at : at + 2], "little") for at in (26, 28))
        start = _HEADER_BYTES + sum(lengths)
        content = record[start : start + entry.compress_size]
        if len(content) < entry.compress_size:
            raise ValueError("the archive ends too early")
        if entry.compress_type == zipfile.ZIP_DEFLATED:
            try:
                content = zlib.decompressobj(-15).decompress(content, entry.file_size + 1)
            except zlib.error as error:
                raise ValueError(f"its bytes in the archive are damaged: {error}") from error
        elif entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"compressed by method {entry.compress_type} of zip")
        if len(content) != entry.file_size or zlib.crc32(content) != entry.CRC:
            raise ValueError("its bytes in the archive are damaged")
        return content

    def _read_record(self, entry: zipfile.ZipInfo) -> bytes:
        """Return a file's header and its bytes, in one reading where the header is as expected."""
        num_bytes = (
            _HEADER_BYTES + len(entry.filename.encode()) + len(entry.extra) + _SLACK_BYTES
        ) + entry.compress_size
        with self._tree.opened(self._archive) as file:
            record = file.read(entry.header_offset, num_bytes)
            lengths = (int.from_bytes(record[at : at + 2], "little") for at in (26, 28))
            missing = _HEADER_BYTES + sum(lengths) + entry.compress_size - len(record)
            if missing > 0 and len(record) == num_bytes:
                record += file.read(entry.header_offset + num_bytes, missing)
        return record

    @contextmanager
    def opened(self, inside: str) -> Iterator[OpenFile]:
        yield _FileInMemory(self.read(inside), self.stamp(inside))

    def as_argument(self, inside: str) -> Any:
        return io.BytesIO(self.read(inside))

    def as_zarr_store(self, inside: str) -> Mapping[str, Any]:
        if not self._tree.is_local:
            raise SourceError(
                f"{self._path(inside)} is compressed in a way that needs the zarr package, which "
                f"reads archives of this machine only: download the archive."
            )
        from zarr.storage import ZipStore  # noqa: PLC0415 - takes a while

        return {"store": ZipStore(self._tree.path(self._archive), mode="r"), "path": inside}

    def _path(self, inside: str) -> str:
        return self._tree.path(f"{self._archive}/{inside}".strip("/"))

    def _entry(self, inside: str) -> zipfile.ZipInfo:
        entry = self._entries.get(inside)
        if entry is None:
            raise FileNotFoundError(f"{self._path(inside)} is not there")
        return entry

    @cached_property
    def _entries(self) -> dict[str, zipfile.ZipInfo]:
        """What is in the archive by path.

        Raises:
            SourceError: If it cannot be read.
        """
        try:
            with zipfile.ZipFile(self._tree.as_argument(self._archive)) as archive:
                return {one.filename: one for one in archive.infolist() if not one.is_dir()}
        except SourceError:
            raise
        except Exception as error:  # damage shows as any error that zipfile can raise
            raise SourceError(
                f"{self._path('')} cannot be read as a zip archive ({error})."
            ) from error

    @cached_property
    def _folders(self) -> dict[str, tuple[dict[str, None], list[str]]]:
        """Names of the folders and of the files in each folder."""
        folders: dict[str, tuple[dict[str, None], list[str]]] = {"": ({}, [])}
        for path in self._entries:
            *parents, name = path.split("/")
            for depth, parent in enumerate(parents):
                folders["/".join(parents[:depth])][0][parent] = None
                folders.setdefault("/".join(parents[: depth + 1]), ({}, []))
            folders["/".join(parents)][1].append(name)
        return folders


class _FileInMemory:
    def __init__(self, content: bytes, stamp: Stamp) -> None:
        self._content = content
        self._stamp = stamp

    def stamp(self) -> Stamp:
        return self._stamp

    def read(self, offset: int, num_bytes: int) -> bytes:
        return self._content[offset : offset + num_bytes]

    def read_each(self, places: Sequence[Sequence[int]]) -> Iterator[bytes]:
        for offset, num_bytes in places:
            yield self.read(offset, num_bytes)

    def read_into(self, offset: int, target: memoryview) -> None:
        content = self.read(offset, len(target))
        if len(content) != len(target):
            raise EOFError("the file ends too early")
        target[:] = content
