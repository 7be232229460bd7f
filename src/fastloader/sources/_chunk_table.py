"""A Parquet file of typed chunks: where each belongs, and their bytes as a stream."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.errors import ImageDataError, SourceError
from fastloader.sources._arrow_buffers import (
    binary_bounds,
    decoded,
    integer_values,
    text_codes,
    valid_mask,
)
from fastloader.sources._chunk_grid import ChunkGrid
from fastloader.sources._parquet_handle import ParquetHandle

__all__ = ["ChunkTable", "column_integers", "require_columns"]

Integers: TypeAlias = npt.NDArray[np.int64]
_Chunk: TypeAlias = tuple[int, str | None, npt.NDArray[np.uint8]]

_PLACES = ("t", "c", "z", "y", "x", "shape_t", "shape_c", "shape_z", "shape_y", "shape_x")
_BATCH_BYTES = 8 << 20


class ChunkTable:
    """Chunks of images, one a row.

    **Processes:** see `fastloader.sources._parquet_handle.ParquetHandle`.
    """

    def __init__(
        self,
        file: ParquetHandle,
        image_ids: Sequence[str],
        image_shapes: Integers,
        chunk_shapes: Integers,
    ) -> None:
        """Read where each chunk belongs.

        Args:
            file: The table.
            image_ids: Name of each image.
            image_shapes: Its sizes T, C, Z, Y, X, shape ``(num_images, 5)``.
            chunk_shapes: Sizes of its chunks, shape ``(num_images, 5)``.

        Raises:
            SourceError: If the file cannot be read.
            ImageDataError: If the chunks of an image do not cover it once.
        """
        self._file = file
        names = ("image_id", *_PLACES)
        with file.reading():
            opened = file.open()
            require_columns(opened.schema_arrow, (*names, "dtype", "pixel_bytes"), file.path)
            table = opened.read(columns=list(names), use_threads=False)
        columns = [column_integers(table.column(name), file.path, name) for name in _PLACES]
        places = np.stack(columns, axis=1)
        codes, texts = text_codes(_one(table.column("image_id")))
        row_of = {text: row for row, text in enumerate(image_ids)}
        known = np.array([*(row_of.get(text, -1) for text in texts), -1], np.int64)
        self.grid = ChunkGrid.checked(
            known[codes], places[:, :5], places[:, 5:], image_shapes, chunk_shapes, file.path
        )
        """Where they belong."""

    def stream(self, numbers: Integers) -> Iterator[_Chunk]:
        """Yield number, dtype and bytes of chunks, from the row groups that have them.

        Args:
            numbers: Rows of the table, ascending.

        Raises:
            SourceError: If the file cannot be read.
        """
        starts = self._file.group_starts
        groups = np.unique(np.searchsorted(starts, numbers, "right") - 1).tolist()
        wanted = np.zeros(int(starts[-1]), np.bool_)
        wanted[numbers] = True
        order = np.concatenate([np.arange(*starts[group : group + 2]) for group in groups])
        batch_rows = max(
            1, _BATCH_BYTES // max(1, int(self.grid.num_pixels[numbers].max()) * 2)
        )
        done = 0
        with self._file.reading():
            batches = self._file.open().iter_batches(
                batch_rows,
                row_groups=groups,
                columns=["dtype", "pixel_bytes"],
                use_threads=False,
            )
            for batch in batches:
                codes, names = text_codes(batch.column("dtype"))
                start, stop, content = binary_bounds(batch.column("pixel_bytes"))
                for at in range(batch.num_rows):
                    number = int(order[done + at])
                    if wanted[number]:
                        name = names[codes[at]] if codes[at] >= 0 else None
                        yield number, name, content[start[at] : stop[at]]
                done += batch.num_rows


def require_columns(schema: pa.Schema, names: Sequence[str], path: str) -> None:
    """Check that a table has some columns.

    Args:
        schema: Of the table.
        names: Of the columns.
        path: File, for error messages.

    Raises:
        SourceError: If it lacks one.
    """
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise SourceError(f"{path} lacks the columns {', '.join(missing)}.")


def _one(column: pa.ChunkedArray) -> pa.Array:
    """Return a small column as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def column_integers(column: pa.ChunkedArray, path: str, name: str) -> Integers:
    """Return a column as int64.

    Args:
        column: Whole numbers of any type.
        path: File, for error messages.
        name: Of the column.

    Raises:
        ImageDataError: If there are others, or nulls.
    """
    try:
        numbers = decoded(_one(column))
        values, is_valid = integer_values(numbers), valid_mask(numbers)
    except (pa.ArrowException, ValueError) as error:
        raise ImageDataError(f"{path}, column {name}: no whole numbers ({error}).") from error
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise ImageDataError(f"{path}, row {row}: {name} is null.")
    return values
