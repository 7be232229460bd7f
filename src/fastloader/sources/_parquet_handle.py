"""A Parquet file by path: opened where it is read, never carried to another process."""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fastloader.errors import SourceError

__all__ = ["ParquetHandle"]

Integers: TypeAlias = npt.NDArray[np.int64]

_READ_BUFFER_BYTES = 64 << 10


class ParquetHandle:
    """The path of a Parquet file, and the file as opened by each process and thread.

    **Processes:** a pickle holds the path and plain values; a forked child opens the file
    again. A file that was replaced since the first opening is an error.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at the file.

        Args:
            path: A Parquet file.

        Raises:
            SourceError: If it is no Parquet file, or cut off.
        """
        self.path = os.fspath(path)
        if Path(self.path).is_dir():
            raise SourceError(f"{self.path} is a folder: expected one Parquet file.")
        self._opened = threading.local()
        self.fingerprint = self._read_fingerprint()
        """Hash of the file's size and of its footer, which has sizes and places of all data."""
        self.modified_ns = Path(self.path).stat().st_mtime_ns
        """When the file was last written to: other pixels may have the same footer."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _opened=threading.local())

    def open(self) -> pq.ParquetFile:
        """Return the file as opened by this process and thread, which stays open.

        Raises:
            SourceError: If it cannot be opened or is another one by now.
        """
        # A forked child inherits the handle: the file offset would be shared with the parent.
        if getattr(self._opened, "process", None) != os.getpid():
            if self._read_fingerprint() != self.fingerprint:
                raise SourceError(
                    f"{self.path} was replaced since it was first opened: make the dataset anew."
                )
            with self.reading():
                self._opened.file = pq.ParquetFile(
                    self.path,
                    buffer_size=_READ_BUFFER_BYTES,
                    page_checksum_verification=True,  # of pages that have a checksum
                )
            self._opened.process = os.getpid()
        return self._opened.file

    @cached_property
    def leaf_paths(self) -> list[str]:
        """Dotted path of each column of numbers or bytes, in the order of the file."""
        schema = self.open().schema
        return [schema.column(position).path for position in range(len(schema))]

    @cached_property
    def group_starts(self) -> Integers:
        """First row of each row group, and last the number of rows."""
        metadata = self.open().metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]).astype(np.int64)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Say which file it was when reading fails.

        Raises:
            SourceError: If what runs inside raises an error of Arrow or the system.
        """
        try:
            yield
        except SourceError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{self.path} cannot be read ({error}): check that it is there, complete and "
                f"Parquet."
            ) from error

    def _read_fingerprint(self) -> str:
        with self.reading(), Path(self.path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8))
            tail = file.read(8)
            footer_bytes = int.from_bytes(tail[:4], "little")
            if tail[4:] != b"PAR1" or footer_bytes > size - 12:
                raise SourceError(
                    f"{self.path} is no Parquet file, or its end is cut off: {size} bytes that "
                    f"do not end in a footer."
                )
            file.seek(size - 8 - footer_bytes)
            footer = file.read(footer_bytes)
        return hashlib.blake2b(footer + size.to_bytes(8, "little"), digest_size=16).hexdigest()
