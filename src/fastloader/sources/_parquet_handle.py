"""A Parquet file by path or URL: opened where it is read, never carried to another process."""

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fastloader.errors import SourceError
from fastloader.sources._arrow_buffers import stored_schema
from fastloader.sources._file_errors import check_unchanged, naming
from fastloader.sources._location import Location, PathLike, StorageOptions
from fastloader.sources._opened_here import OpenedHere, state_without
from fastloader.sources._sized_stream import SizedStream
from fastloader.sources._standing_file import StandingFile

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["ParquetHandle"]

Integers: TypeAlias = npt.NDArray[np.int64]

_READ_BUFFER_BYTES = 64 << 10


class ParquetHandle:
    """The path of a Parquet file, and the file as opened by each process and thread.

    **Processes:** a pickle holds the path and plain values; a forked child opens the file
    again. A file that was replaced since the first opening is an error.
    """

    def __init__(self, path: PathLike, storage_options: StorageOptions = None) -> None:
        """Look at the file.

        Args:
            path: A Parquet file, also by URL.
            storage_options: Arguments of fsspec's file system.

        Raises:
            SourceError: If it is no Parquet file, or cut off.
        """
        self._location = Location(path, storage_options)
        if self._location.is_local and self._location.is_folder():
            raise SourceError(f"{self.path} is a folder: expected one Parquet file.")
        self.fingerprint = self._read_fingerprint()
        """Hash of the footer, which has sizes and places of all data, of the file's size and of
        when it was last written to: other pixels may have the same footer."""
        self.standing = StandingFile(self.path)
        """Knows when it was written to in place."""
        self._opened = OpenedHere(self._open)
        self._raw = OpenedHere(self._open_raw)
        self._withheld = OpenedHere(self._open_withheld)

    def __getstate__(self) -> dict[str, Any]:
        return state_without(self, "leaf_paths", "group_starts")

    @property
    def path(self) -> str:
        """The file, as error messages name it."""
        return self._location.path

    @property
    def is_local(self) -> bool:
        """True for a file of this machine."""
        return self._location.is_local

    def open(self) -> pq.ParquetFile:
        """Return the file as opened by this process and thread, which stays open.

        Raises:
            SourceError: If it cannot be opened or is another one by now.
        """
        return self._opened.get()

    def open_raw(self) -> pa.NativeFile:
        """Return a local file as opened by this process and thread, to read its bytes.

        Raises:
            SourceError: If it cannot be opened or is another one by now.
        """
        return self._raw.get()

    def check_at_url(self) -> None:
        """Check that a file at a URL is still the one that was looked at first.

        Raises:
            SourceError: If it is another one, or not there.
        """
        self._location.check_at_url()

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        self._opened.close()
        self._raw.close()
        self._withheld.close()

    def fragment(self, partition: "ds.Expression | None" = None) -> "ds.ParquetFileFragment":
        """Return the file as Arrow's datasets take it.

        Args:
            partition: What is true of all rows.
        """
        import pyarrow.dataset as ds  # noqa: PLC0415 - imports pandas where it is installed

        system, path = self._location.file_system()
        return ds.ParquetFileFormat().make_fragment(
            path, filesystem=system, partition_expression=partition
        )

    @cached_property
    def leaf_paths(self) -> list[str]:
        """Dotted path of each column of numbers or bytes, in the order of the file."""
        schema = self.open().schema
        return [schema.column(position).path for position in range(len(schema))]

    @cached_property
    def group_starts(self) -> Integers:
        """First row of each row group, and last the number of rows.

        Raises:
            SourceError: If a row group claims an absurd number of rows.
        """
        metadata = self.open().metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if min(sizes, default=0) < 0 or sum(sizes) != metadata.num_rows:
            raise SourceError(
                f"{self.path} cannot be read: its row groups of {sizes[:5]} ... rows are not the "
                f"{metadata.num_rows} rows of the file."
            )
        return np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]).astype(np.int64)

    def streams(self, groups: Sequence[int]) -> list[list[int]]:
        """Return row groups by those that Arrow can read as one stream.

        Each has dictionaries of its own, which Arrow cannot join where they are in structs or lists.

        Args:
            groups: Numbers of row groups.
        """
        if self._has_nested_dictionaries:
            return [[group] for group in groups]
        return [list(groups)]

    @cached_property
    def _has_nested_dictionaries(self) -> bool:
        return any(map(_has_dictionary_within, self.open().schema_arrow.types))

    def check_columns(self, leaves: Sequence[int]) -> None:
        """Check what the footer says of some columns, so that it can be asked for safely.

        Where it is damaged, ``metadata.row_group(i).column(j)`` and its statistics end the
        process instead of raising (pyarrow 26). The reader of record batches looks at the same
        entries, of all row groups before it reads the first, and raises. What it would read
        then is kept from it: all pixels, of a remote file over the network.

        Args:
            leaves: Positions of leaf columns.

        Raises:
            SourceError: If an entry makes no sense.
        """
        with self.reading():
            file = self.open()
            if not file.num_row_groups:
                return
            groups = list(range(file.num_row_groups))
            # By a reader that is made for it: with pre_buffer one keeps what it has read.
            self._open_withheld(pre_buffer=True).come_to_read(groups, leaves)
            for leaf in leaves:
                expected = file.schema.column(leaf).physical_type
                for group in groups:
                    found = file.metadata.row_group(group).column(leaf).physical_type
                    if found != expected:
                        raise SourceError(
                            f"{self.path} cannot be read: column {self.leaf_paths[leaf]!r} is of "
                            f"type {expected}, but of type {found} in row group {group}."
                        )

    def check_codec(self, group: int, leaf: int) -> None:
        """Check that the footer says how a column is compressed, so that it can be asked for safely.

        Args:
            group: Number of the row group.
            leaf: Position of the leaf column.

        Raises:
            SourceError: If it does not.
        """
        with self.reading():
            # Where a column is read bit by bit, its codec is looked at before the first read.
            self._withheld.get().come_to_read([group], [leaf])

    def _open_withheld(self, *, pre_buffer: bool = False) -> "_WithheldFile":
        """Return the file as opened by somebody who must not read it."""
        return _WithheldFile(self.open().metadata, self._size_bytes, pre_buffer=pre_buffer)

    def reading(self) -> AbstractContextManager[None]:
        """Turn errors of Arrow into `fastloader.errors.SourceError`, naming the file."""
        # Web servers that cannot give parts of a file are a ValueError to fsspec.
        return naming(self.path, "Parquet", ValueError)

    def _open(self) -> pq.ParquetFile:
        """Open the file, which must be the one that was looked at.

        Raises:
            SourceError: If it is another one by now.
        """
        if not self.is_local:
            check_unchanged(self.path, self._read_fingerprint(), self.fingerprint)
        with self.reading():
            options: dict[str, Any] = {
                "page_checksum_verification": True
            }  # where pages have one
            if self.is_local:
                # With pre_buffer a reader keeps all bytes that it has read, while it lives.
                return _open_plain(
                    self._raw.get(), buffer_size=_READ_BUFFER_BYTES, pre_buffer=False, **options
                )
            stream = self._location.open_input()
            try:
                # Few large requests beside each other, where each takes its time.
                file = _open_plain(stream, pre_buffer=True, **options)
            except BaseException:
                stream.close()
                raise
            # Nobody else closes it when the file is let go of: not Arrow, for file systems in
            # Python.
            weakref.finalize(file, stream.close).atexit = False
            return file

    def _open_raw(self) -> pa.NativeFile:
        """Open the file as bytes.

        Raises:
            SourceError: If it is another one by now.
        """
        check_unchanged(self.path, self._read_fingerprint(), self.fingerprint)
        with self.reading():
            # Each read says where, so that no position is shared: not with a forked process, either.
            return self._location.open_input()

    def _read_fingerprint(self) -> str:
        """Hash the footer and what the file system knows of the file.

        Raises:
            SourceError: If there is none.
        """
        with self.reading(), self._location.opened() as file:
            size = self._size_bytes = file.size()
            tail = file.read_at(min(8, size), max(0, size - 8))
            footer_bytes = int.from_bytes(tail[:4], "little")
            if tail[4:] == b"PARE":
                raise SourceError(
                    f"{self.path} is encrypted, and FastLoader takes no keys: write it anew without "
                    f"encryption, or read it by pyarrow and convert what you need."
                )
            if tail[4:] != b"PAR1" or footer_bytes > size - 12:
                raise SourceError(
                    f"{self.path} is no Parquet file, or its end is cut off: {size} bytes that "
                    f"do not end in a footer."
                )
            footer = file.read_at(footer_bytes, size - 8 - footer_bytes)
        return self._location.fingerprint(footer)


def _open_plain(source: pa.NativeFile, **options: Any) -> pq.ParquetFile:
    """Open a file whose structs come as such, also where a type is registered for one.

    Of columns of such a type Arrow reads no part alone. So the types that Arrow notes in the
    footer of its files are left out where there is one, and follow from Parquet's.

    Args:
        source: The file, open.
        options: Of `pyarrow.parquet.ParquetFile`.
    """
    file = pq.ParquetFile(source, **options)
    if file.schema_arrow == stored_schema(file.schema_arrow):
        return file
    size = source.size()
    tail = source.read_at(8, size - 8)
    footer_bytes = int.from_bytes(tail[:4], "little")
    footer = source.read_at(footer_bytes, size - 8 - footer_bytes)
    plain = footer.replace(b"ARROW:schema", b"other:schema")
    metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + plain + tail))
    return pq.ParquetFile(source, metadata=metadata, **options)


def _has_dictionary_within(kind: pa.DataType) -> bool:
    """Return whether a part of a type is a dictionary, not the type itself."""
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return any(pa.types.is_dictionary(part) or _has_dictionary_within(part) for part in parts)


class _WithheldFile:
    """A Parquet file of which only the footer is known: Arrow does all that comes before a read."""

    def __init__(self, metadata: pq.FileMetaData, size_bytes: int, *, pre_buffer: bool) -> None:
        self._stream = _WithheldStream(size_bytes)
        self._file = pq.ParquetFile(
            self._stream,
            metadata=metadata,
            pre_buffer=pre_buffer,
            buffer_size=0 if pre_buffer else _READ_BUFFER_BYTES,
        )

    def come_to_read(self, groups: Sequence[int], leaves: Sequence[int]) -> None:
        """Let Arrow do all that it does before it reads the first byte of some columns.

        Args:
            groups: Numbers of row groups.
            leaves: Positions of leaf columns.

        Raises:
            pyarrow.ArrowException: If the footer makes no sense there.
            OSError: The same.
        """
        self._stream.was_asked = False
        batches = self._file.reader.iter_batches(
            1, row_groups=list(groups), column_indices=list(leaves), use_threads=False
        )
        try:
            next(batches, None)
        except (pa.ArrowException, OSError):
            if not self._stream.was_asked:
                raise


class _WithheldStream(SizedStream):
    """A file that has a length and shows nothing else."""

    was_asked = False
    """Whether somebody came to read."""

    def read(self, size: int = -1) -> bytes:  # noqa: ARG002 - of the base
        self.was_asked = True
        return b""  # an exception of Python takes Arrow longer to note than all the rest
