"""Files at URLs, read through Arrow's file systems or fsspec's."""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, FSSpecHandler, PyFileSystem

from fastloader._extras import import_extra
from fastloader.sources._file_tree import Stamp
from fastloader.sources._web_folders import is_web_path, tell_folders

__all__ = ["UrlFiles", "url_files"]

_CHANGING = (
    "ETag", "etag", "md5Hash", "Content-MD5", "Digest", "mtime", "LastModified",
    "Last-Modified", "last_modified", "updated", "created",
)  # fmt: skip
"""What file systems of fsspec say of a file that changes with it, the best first. Only one is
taken: the same time comes with and without fractions of a second, from a list or a single file."""


class UrlFiles(Protocol):
    """What is done with files that lie elsewhere, by their paths in the file system.

    All may raise any error of any library; what is not there is a `FileNotFoundError`.
    """

    def list_folder(self, path: str) -> tuple[list[str], list[str]]:
        """Return the names of a folder's folders and of its files."""
        ...

    def stamp(self, path: str) -> Stamp:
        """Return size of a file and a number that changes when it is changed."""
        ...

    def stamp_all(self, path: str) -> dict[str, Stamp]:
        """Return the stamps of all files in a folder, at any depth, by their paths."""
        ...

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Return the bytes of a file between two places; of all of it without them."""
        ...

    def for_zarr(self, path: str) -> Any:
        """Return a folder as a store of the zarr package."""
        ...


def url_files(system: FileSystem) -> UrlFiles:
    """Return the files of a file system.

    Args:
        system: Of Arrow, or of fsspec in Arrow's wrapper.
    """
    if isinstance(system, PyFileSystem) and isinstance(system.handler, FSSpecHandler):
        # Without the wrapper, since that opens a file, which asks for its size and reads ahead.
        return _FsspecFiles(system.handler.fs)
    return _ArrowFiles(system)


class _ArrowFiles:
    def __init__(self, system: FileSystem) -> None:
        self._system = system

    def list_folder(self, path: str) -> tuple[list[str], list[str]]:
        # Of Google's store, Arrow lists folders only where somebody has made an object for each.
        is_flat = self._system.type_name == "gcs"
        root = path.rstrip("/") + "/"
        folders: dict[str, None] = {}
        files: list[str] = []
        for one in self._system.get_file_info(FileSelector(path, recursive=is_flat)):
            name, deeper, _ = one.path.removeprefix(root).partition("/")
            if deeper or one.type == FileType.Directory:
                folders[name] = None
            elif one.type == FileType.File:
                files.append(name)
        return list(folders), files

    def stamp(self, path: str) -> Stamp:
        info: FileInfo = self._system.get_file_info(path)
        if info.type != FileType.File:
            raise FileNotFoundError(f"{path} is no file")
        return _arrow_stamp(info)

    def stamp_all(self, path: str) -> dict[str, Stamp]:
        found = self._system.get_file_info(FileSelector(path, recursive=True))
        return {one.path: _arrow_stamp(one) for one in found if one.type == FileType.File}

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        with self._system.open_input_file(path) as file:
            first = start or 0
            last = file.size() if stop is None else stop
            return bytes(file.read_at(last - first, first))

    def for_zarr(self, path: str) -> Any:
        arrow = import_extra("fsspec.implementations.arrow", "remote", f"Reading {path}")
        wrapped = arrow.ArrowFSWrapper(self._system)
        # The next wrapper asks for it, and would get an error where the system is not of Hadoop.
        vars(wrapped)["fsid"] = f"arrow_{id(self._system)}"
        return _zarr_store(wrapped, path)


class _FsspecFiles:
    def __init__(self, system: Any) -> None:
        self._system = system

    def list_folder(self, path: str) -> tuple[list[str], list[str]]:
        kinds = {str(one["name"]): one["type"] for one in self._system.ls(path, detail=True)}
        if is_web_path(path):
            kinds = tell_folders(self._system, path, kinds)
        folders: list[str] = []
        files: list[str] = []
        for one, kind in kinds.items():
            name = one.rstrip("/").rpartition("/")[2]
            (folders if kind == "directory" else files).append(name)
        return folders, files

    def stamp(self, path: str) -> Stamp:
        info = self._system.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(f"{path} is no file")
        return _fsspec_stamp(info)

    def stamp_all(self, path: str) -> dict[str, Stamp]:
        found = self._system.find(path, detail=True)
        return {one: _fsspec_stamp(info) for one, info in found.items()}

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        content = bytes(self._system.cat_file(path, start=start, end=stop))
        if start is not None and stop is not None and len(content) > stop - start:
            return content[start:stop]  # of a web server that gives whole files only
        return content

    def for_zarr(self, path: str) -> Any:
        return _zarr_store(self._system, path)


def _arrow_stamp(info: FileInfo) -> Stamp:
    return info.size or 0, info.mtime_ns or 0


def _fsspec_stamp(info: Mapping[str, Any]) -> Stamp:
    said = next((info[name] for name in _CHANGING if info.get(name)), None)
    digest = hashlib.blake2b(
        repr(said).encode(), digest_size=7
    ).digest()  # fits a signed number of 64 bits
    return int(info["size"] or 0), int.from_bytes(digest, "little")


def _zarr_store(system: Any, path: str) -> Any:
    from zarr.storage import FsspecStore  # noqa: PLC0415 - takes a while

    wrapper = import_extra(
        "fsspec.implementations.asyn_wrapper", "remote", f"Reading {path} by zarr"
    )
    in_loop = wrapper.AsyncFileSystemWrapper(system, asynchronous=True)
    return FsspecStore(in_loop, read_only=True, path=path)
