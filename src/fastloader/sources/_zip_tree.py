"""The files in a zip archive: of a zipped Zarr store."""

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from fastloader.errors import SourceError
from fastloader.sources._file_tree import LocalFile, LocalTree, OpenFile, Stamp

__all__ = ["ZIP_SUFFIXES", "ZipTree"]

ZIP_SUFFIXES = (".zarr.zip", ".ozx")
"""The second is that of RFC 9 of OME-NGFF."""
_HEADER_BYTES = 30


class ZipTree(LocalTree):
    """An archive of this machine as a folder; see `FileTree` for its methods.

    **Processes:** holds the archive's directory, which a pickle goes without, and no open file.

    References:
        APPNOTE.TXT 6.3.10, 4.3.7, on local headers; RFC 9 of OME-NGFF.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {"where": self.where}

    def is_file(self, inside: str) -> bool:
        """Return True if there is a file."""
        return inside in self._entries

    def list_folder(self, inside: str) -> tuple[list[str], list[str]]:
        """Return the names of a folder's folders and of its files.

        Raises:
            SourceError: If there is no such folder, or no archive.
        """
        found = self._folders.get(inside.strip("/"))
        if found is None:
            raise SourceError(f"{self.path(inside)} is not there.")
        return list(found[0]), found[1]

    def identity(self, inside: str) -> Hashable:
        """Return the path: archives have no links that are followed."""
        return inside.strip("/")

    def stamp(self, inside: str) -> Stamp:
        """Return size of a file, and time of the last change of the archive in nanoseconds."""
        return self._entry(inside).file_size, os.stat(self.where).st_mtime_ns  # noqa: PTH116

    def stamp_all(self, inside: str) -> bytes:
        """Return a hash of the names, sizes and checksums of all files in a folder."""
        entries = sorted(
            (name, entry.file_size, entry.CRC)
            for name, entry in self._entries.items()
            if name.startswith(f"{inside.strip('/')}/")
        )
        text = repr(entries).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, digest_size=16).digest()

    def read(self, inside: str) -> bytes:
        """Return a whole file.

        Raises:
            ValueError: If it is damaged, or compressed by another method than deflate.
        """
        entry = self._entry(inside)
        with open(self.where, "rb", buffering=0) as opened:  # noqa: PTH123 - a Path takes time
            file = LocalFile(opened.fileno())
            header = file.read(entry.header_offset, _HEADER_BYTES)
            lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
            start = entry.header_offset + _HEADER_BYTES + sum(lengths)
            if start + entry.compress_size > file.stamp()[0]:
                raise ValueError("the archive ends too early")
            content = file.read(start, entry.compress_size)
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

    @contextmanager
    def opened(self, inside: str) -> Iterator[OpenFile]:
        """Read a file and give it for a block."""
        yield _FileInMemory(self.read(inside), self.stamp(inside))

    def as_argument(self, inside: str) -> Any:
        """Return a stream."""
        return io.BytesIO(self.read(inside))

    def as_zarr_store(self, inside: str) -> Mapping[str, Any]:
        """Return a store of the zarr package, and the path in it."""
        from zarr.storage import ZipStore  # noqa: PLC0415 - takes a while

        return {"store": ZipStore(self.where, mode="r"), "path": inside}

    def _entry(self, inside: str) -> zipfile.ZipInfo:
        entry = self._entries.get(inside)
        if entry is None:
            raise FileNotFoundError(f"{self.path(inside)} is not there")
        return entry

    @cached_property
    def _entries(self) -> dict[str, zipfile.ZipInfo]:
        """What is in the archive by path.

        Raises:
            SourceError: If it cannot be read.
        """
        try:
            with zipfile.ZipFile(self.where) as archive:
                return {one.filename: one for one in archive.infolist() if not one.is_dir()}
        except Exception as error:  # damage shows as any error that zipfile can raise
            raise SourceError(
                f"{self.where} cannot be read as a zip archive ({error})."
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
