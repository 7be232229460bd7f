"""Where a file lies: a local path, or a URL of a file system of Arrow or fsspec."""

import hashlib
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow.fs import (
    FileSelector,
    FileSystem,
    FileType,
    FSSpecHandler,
    LocalFileSystem,
    PyFileSystem,
)

from fastloader._extras import import_extra
from fastloader.errors import MissingExtraError, SourceError
from fastloader.sources._paths import PathLike, StorageOptions, is_url, path_text
from fastloader.sources._url_files import url_files
from fastloader.sources._web_folders import is_web_folder, is_web_path

if TYPE_CHECKING:
    from fastloader.sources._file_tree import Stamp

__all__ = ["Location", "PathLike", "StorageOptions"]

_LARGE_BYTES = 64 << 20
"""Of a file that its server gives as a whole only: a warning tells from there on."""
_ARROW_SCHEMES = {"s3", "gs", "gcs", "hdfs", "viewfs"}
"""Not ``abfs``: where there are no credentials, Arrow 26 ends the process."""
_URI_CHARACTERS = ":/?#[]@!$&'()*+,;=%"  # RFC 3986, 2.1 and 2.2


class Location:
    """A path or URL; whatever it takes to reach it is made where it is used.

    **Processes:** a pickle holds the text and the options, and no content.
    """

    def __init__(self, path: PathLike, storage_options: StorageOptions = None) -> None:
        """Take it down; nothing is opened yet.

        Args:
            path: A local path, or a URL such as ``s3://bucket/cells.parquet``. Arrow reads
                ``s3``, ``gs`` and ``hdfs`` itself; with `storage_options`, and for all other
                schemes, fsspec does.
            storage_options: Arguments of fsspec's file system.
        """
        self.path = path_text(path)
        self._options = dict(storage_options or {})
        self._gives_parts = False
        self._whole: tuple[Stamp, pa.Buffer] | None = None
        self._stamp: Stamp | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_whole": None}

    @property
    def is_local(self) -> bool:
        """True for a path of this machine."""
        return not is_url(self.path)

    @property
    def is_of_web(self) -> bool:
        """True for a URL of a web server, which lists folders one by one."""
        return is_web_path(self.path)

    @property
    def storage_options(self) -> dict[str, Any]:
        """Arguments of the file system, as given."""
        return self._options

    def sibling(self, path: str) -> "Location":
        """Return another path of the same kind, with the same options."""
        return Location(path, self._options)

    def inside(self, name: str) -> "Location":
        """Return a file in this folder, with the same options."""
        folder, mark, query = (self.path, "", "") if self.is_local else self.path.partition("?")
        inside = quote(name, safe="/=") if self._is_for_arrow else name
        return self.sibling(f"{folder.rstrip('/')}/{inside}{mark}{query}")

    def file_system(self) -> tuple[FileSystem, str]:
        """Return the file system and the path in it, for this process and thread.

        Raises:
            SourceError: If the URL cannot be understood.
            MissingExtraError: If it needs fsspec or a package of it that is not installed.
        """
        if self.is_local:
            return LocalFileSystem(), self.path
        try:
            if self._is_for_arrow:
                uri = quote(self.path, safe=_URI_CHARACTERS)  # people write blanks and umlauts
                found: tuple[FileSystem, str] = FileSystem.from_uri(uri)
                return found
            core = import_extra("fsspec.core", "remote", f"Reading {self.path}")
            system, path = core.url_to_fs(self.path, **self._options)
        except MissingExtraError:
            raise
        except ImportError as error:
            raise MissingExtraError(
                f'Reading {self.path} needs another package ({error}): pip install "fastloader'
                f'[remote]", or what the message says.'
            ) from error
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise SourceError(f"{self.path} cannot be reached ({error}).") from error
        return PyFileSystem(FSSpecHandler(system)), path

    @contextmanager
    def opened(self) -> Iterator[pa.NativeFile]:
        """Open the file to read anywhere in it, and close it at the end of the block.

        Yields:
            The open file.
        """
        with self.open_input() as file:
            yield file

    def open_input(self) -> pa.NativeFile:
        """Return the file, opened to read anywhere in it.

        Of a web server that gives whole files only, it is read as a whole, once in each process.
        """
        system, path = self.file_system()
        whole = None
        if is_web_path(path) and not self._gives_parts:
            whole = self._read_whole(system, path)
            self._gives_parts = whole is None
        return system.open_input_file(path) if whole is None else pa.BufferReader(whole)

    def _read_whole(self, system: FileSystem, path: str) -> pa.Buffer | None:
        """Return all of a file, None if the server gives a part of it when it is asked for that."""
        stamp = url_files(system).stamp(path)
        if self._whole is None or self._whole[0] != stamp:
            content = system.handler.fs.cat_file(path, start=0, end=1)
            if len(content) < 2:
                return None
            if self._whole is None and len(content) >= _LARGE_BYTES:
                warnings.warn(
                    f"{self.path}: its server gives whole files only, so all {len(content)} bytes "
                    f"are read into the memory of each process: use a server that knows ranges, "
                    f"or a copy on this machine.",
                    stacklevel=2,
                )
            self._whole = stamp, pa.py_buffer(content)
        return self._whole[1]

    def is_folder(self) -> bool:
        """Return True if this is a folder, a prefix of an object store, or a web server's list.

        Raises:
            SourceError: If the URL cannot be understood or reached.
        """
        if self.is_local:
            return Path(self.path).is_dir()
        system, path = self.file_system()
        try:
            if is_web_path(path):
                return is_web_folder(system.handler.fs, path)
            return bool(system.get_file_info(path).type == FileType.Directory)
        except FileNotFoundError:
            return False
        except Exception as error:  # libraries behind file systems raise errors of their own
            raise SourceError(f"{self.path} cannot be reached ({error}).") from error

    def list_files(self) -> list[str]:
        """Return the paths in this folder of all files below it, which `inside` takes.

        Raises:
            SourceError: If it cannot be listed.
        """
        system, root = self.file_system()
        try:
            found = system.get_file_info(FileSelector(root, recursive=True))
        except Exception as error:  # as above
            raise SourceError(f"{self.path} cannot be listed ({error}).") from error
        root = root.rstrip("/") + "/"
        return [one.path.removeprefix(root) for one in found if one.type == FileType.File]

    @property
    def _is_for_arrow(self) -> bool:
        return not self._options and urlsplit(self.path).scheme in _ARROW_SCHEMES

    def fingerprint(self, content: bytes) -> str:
        """Return a hash of a part of the file, of its size and of when it was last changed.

        Args:
            content: What of the file changes with the rest of it, such as its footer.

        Raises:
            SourceError: If the file is not there.
        """
        stamp = self._read_stamp()
        if self._stamp is None:
            self._stamp = stamp
        return hashlib.blake2b(content + repr(stamp).encode(), digest_size=16).hexdigest()

    def check_at_url(self) -> None:
        """Check that a file at a URL is still the one whose fingerprint was taken first.

        Nothing keeps it while it is open: what is read after it was replaced comes from the new one.

        Raises:
            SourceError: If it is another one, or not there.
        """
        if not self.is_local and self._read_stamp() != self._stamp:
            raise SourceError(
                f"{self.path} was replaced since it was first opened: make the dataset anew."
            )

    def _read_stamp(self) -> "Stamp":
        """Return what tells one content of the file from another.

        Raises:
            SourceError: If the file is not there.
        """
        system, path = (None, self.path) if self.is_local else self.file_system()
        try:
            return _local_stamp(path) if system is None else url_files(system).stamp(path)
        except Exception as error:  # as above
            raise SourceError(f"{self.path} cannot be reached ({error}).") from error


def _local_stamp(path: str) -> "Stamp":
    """Return size and time of change as a file system of Arrow does, in a tenth of the time.

    Raises:
        FileNotFoundError: If there is no file.
    """
    state = os.stat(path)  # noqa: PTH116 - asked for with each file
    if not stat.S_ISREG(state.st_mode):
        raise FileNotFoundError(f"{path} is no file")
    return state.st_size, state.st_mtime_ns
