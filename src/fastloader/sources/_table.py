"""What a table format must be able to do for its images to be read."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._pixels_apart import PieceRows

__all__ = [
    "ArrowTable",
    "HasMappedFile",
    "HasPixelsApart",
    "HasStatistics",
    "MayBeAtUrl",
    "NumberedBatch",
]

Integers: TypeAlias = npt.NDArray[np.int64]
NumberedBatch: TypeAlias = tuple[Integers, pa.RecordBatch]
"""Row numbers, ascending, and the rows."""


class ArrowTable(Protocol):
    """Rows of Arrow columns in storage, by number.

    **Processes:** can be pickled; holds paths and plain values, and opens files where it reads.
    """

    @property
    def path(self) -> str:
        """File and table, as error messages name them."""
        ...

    @property
    def file_path(self) -> str:
        """Path or URL of the file or folder alone."""
        ...

    @property
    def fingerprint(self) -> str:
        """Text that changes when the content does."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        ...

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        ...

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Turn errors of the format into `fastloader.errors.SourceError`, naming the file."""
        ...

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole columns.

        Args:
            names: Of columns, at least one.
        """
        ...

    def read_fields(
        self,
        column: str,
        fields: Sequence[str],
        rows: Integers | None,
        batch_rows: int,
        without: Sequence[str] = (),
    ) -> Iterator[NumberedBatch]:
        """Yield some fields of a struct column, as columns of record batches.

        Args:
            column: Name of the column.
            fields: Of the struct; others may come too, and need not be read.
            rows: Row numbers, ascending, each once; all rows if None. Others may come too.
            batch_rows: Rows to hold at once, where the format lets choose.
            without: Fields of the structs in lists that nobody looks at: they need not come.
        """
        ...


@runtime_checkable
class HasStatistics(Protocol):
    """A table that knows something of its values without reading them."""

    def only_text(self, column: str, paths: Sequence[Sequence[str]]) -> str | None:
        """Return the text that all values of some fields have; None if any differs or is null.

        Args:
            column: Name of a struct column.
            paths: Names on the way to each field, those of the structs in a list among them.
        """
        ...


@runtime_checkable
class HasMappedFile(Protocol):
    """A table whose library gives views of a file that it maps, pages of which count as memory."""

    def find_views(self, column: pa.Array) -> list[tuple[range, npt.NDArray[np.uint8]]]:
        """Return the addresses of the mapping, and the content, of those buffers that are views.

        Args:
            column: Of a batch that the table has given.
        """
        ...


@runtime_checkable
class HasPixelsApart(Protocol):
    """A table in which the fields of chunks and planes can be read without pixels, at no cost."""

    def read_pieces(
        self, column: str, name: str, rows: Integers | None, *, is_load: bool
    ) -> Iterator[tuple[Integers, PieceRows]]:
        """Yield row numbers, and the chunks or planes of these rows.

        Args:
            column: Name of the column.
            name: ``"chunks"`` or ``"planes"``.
            rows: Row numbers, ascending, each once; all rows if None. Others may come too.
            is_load: Whether each row is read once; or else others are asked for next, or the
                same again.
        """
        ...


@runtime_checkable
class MayBeAtUrl(Protocol):
    """A table that may be read from a server, which keeps no file because somebody reads it."""

    def check_at_url(self) -> None:
        """Check that what is at a URL is still what was looked at first."""
        ...
