"""Images in a Parquet file: streamed by record batches, rows found by row group."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from fastloader.errors import ImageDataError, SourceError
from fastloader.sources._batch_rows import rows_at_once
from fastloader.sources._description import ImageDescription
from fastloader.sources._location import PathLike, StorageOptions
from fastloader.sources._ome_arrow_layout import (
    ColumnLayout,
    choose_image_column,
    other_columns,
)
from fastloader.sources._ome_arrow_pixels import PixelWriter
from fastloader.sources._ome_arrow_table import ImageTableReader
from fastloader.sources._one_at_a_time import one_at_a_time
from fastloader.sources._parquet_columns import ParquetColumns
from fastloader.sources._parquet_handle import ParquetHandle
from fastloader.sources._parquet_leaves import ImageLeaves
from fastloader.sources._parquet_levels import PageError
from fastloader.sources._parquet_plan import (
    Job,
    choose_threads,
    is_worth_pages,
    join_streams,
    plan_jobs,
)
from fastloader.sources._parquet_statistics import find_uniform
from fastloader.sources._pixels_apart import PieceRows
from fastloader.sources._protocol import ColumnValues, ImageTable, WritePixels
from fastloader.sources._write_behind import WriteBatch, WriteBehind

__all__ = ["ParquetSource"]

Integers: TypeAlias = npt.NDArray[np.int64]

_WORTH_A_THREAD_BYTES = 32 << 20
"""Below it, starting a thread that writes behind takes longer than it saves."""


class ParquetSource:
    """The images of one column of a Parquet file.

    **Processes:** files are opened by the process and thread that reads; a pickle holds the
    path and plain values. A file that was replaced since is an error.

    References:
        OME-Arrow 0.0.2 to 0.1.0, https://github.com/WayScience/ome-arrow.
    """

    def __init__(
        self,
        path: PathLike,
        image_column: str | None = None,
        *,
        storage_options: StorageOptions = None,
        partition: Mapping[str, Any] | None = None,
        missing_numbers: Collection[str] = (),
        is_interleaved: bool = False,
    ) -> None:
        """Open the file and find the column.

        Args:
            path: A Parquet file, also by URL.
            image_column: Name of the column; may be left out if there is only one of images.
            storage_options: Arguments of fsspec's file system.
            partition: Further columns, of one value each.
            missing_numbers: Names of those whose value is None, and a number in other files.
            is_interleaved: Whether each pixel is red, green and blue side by side, although the
                metadata says one channel; images then seem three times as wide.

        Raises:
            SourceError: If the file cannot be read, or the column is missing, no image or not
                the only one.
        """
        self._file = ParquetHandle(path, storage_options)
        with self._file.reading():
            schema = self._file.open().schema_arrow
        self._column = choose_image_column(schema, image_column, self._file.path)
        others = other_columns(schema, self._column)
        self._columns = ParquetColumns(self._file, others, partition or {}, missing_numbers)
        self._layout = ColumnLayout.of(
            schema.field(self._column).type, self.where, is_interleaved=is_interleaved
        )
        self._leaves = ImageLeaves(self._file, self._column, self._layout)
        self._paged = self._leaves.paged()

    @property
    def where(self) -> str:
        """File and column, as error messages name them."""
        return f"{self._file.path}, column {self._column!r}"

    @property
    def fingerprint(self) -> str:
        """Hash of the file's size and footer, and when it was last written to; and the column."""
        return f"{self._file.fingerprint} {self._column!r}"

    @property
    def num_rows(self) -> int:
        """Number of rows, with and without an image."""
        return int(self._file.group_starts[-1])

    @property
    def group_starts(self) -> Integers:
        """First row of each row group, and last the number of rows."""
        return self._file.group_starts

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns that hold no images."""
        return self._columns.names

    def read_table(self) -> ImageTable:
        """Return sizes and pixel types of all images, checked as far as they can be.

        Raises:
            SourceError: If the file cannot be read.
            ImageDataError: If sizes are absurd or pieces missing.
        """
        return self._scan[0]

    def read_channel_names(self) -> list[tuple[str | None, ...]]:
        """Return the names of the channels of each image; of none for a row without image.

        Raises:
            SourceError: If the file cannot be read.
        """
        return self._columns.read_channel_names(self._column)

    def iterate_descriptions(self) -> Iterator[ImageDescription]:
        """Yield what is known of each image beside its pixels, row after row.

        Raises:
            SourceError: If the file cannot be read.
        """
        return self._columns.iterate_descriptions(self._column)

    def read_column(self, name: str) -> ColumnValues:
        """Return the values of a column that holds no images; see `ImageSource.read_column`.

        Raises:
            SourceError: If there is no such column or it cannot be read.
        """
        return self._columns.read(name)

    def find_rows(self, condition: pc.Expression) -> Integers:
        """Return the numbers of the rows that meet a condition; see `ImageSource.find_rows`.

        Row groups whose statistics exclude it are not read.

        Raises:
            SettingsError: If the condition does not fit the columns.
            SourceError: If the file cannot be read.
        """
        return self._columns.find_rows(condition)

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        self._file.close()
        for paged in self._paged.values():
            paged.close()

    def read_images(
        self,
        rows: Integers,
        offsets: Integers,
        write: WritePixels,
        *,
        channels: Sequence[int] | None = None,
        on_rows: Callable[[int], None] | None = None,
        num_threads: int = 1,
    ) -> None:
        """Write images to memory; see `ImageSource.read_images`.

        `num_threads` row groups are read at once, if there is enough to read.

        Raises:
            SourceError: If the file cannot be read.
            ImageDataError: If the pixels of an image make no sense.
        """
        if not len(rows):
            return
        table, in_chunks = self._scan
        writer = PixelWriter(
            self._layout, table, rows, offsets, write, channels=channels, where=self.where
        )
        jobs = plan_jobs(
            rows,
            in_chunks[rows],
            self._file.group_starts,
            self._leaves.chunks,
            self._leaves.planes,
        )
        num_bytes = table.shapes[rows].prod(axis=1) * table.item_sizes_of(rows)
        num_allowed, has_bytes = num_threads, self._layout.has_byte_chunks
        paged = self._paged.get(jobs[0].piece)
        num_threads = choose_threads(
            num_allowed,
            int(num_bytes.sum()),
            sum(len(job.groups) for job in jobs),
            has_bytes=has_bytes,
            is_paged=lambda: paged is not None and paged.has_large_bytes(jobs[0].groups[0]),
        )
        batch_rows = rows_at_once(num_bytes, num_threads, is_in_lists=not has_bytes)
        announce = one_at_a_time(on_rows)

        @self._file.standing.guard
        def write_batch(batch: PieceRows, row_numbers: Integers) -> None:
            announce(writer.write(batch[0], row_numbers, apart=batch[1]))

        def run(job: Job) -> None:
            self._run(job, write_batch, write_batch, batch_rows)

        if num_threads == 1:
            is_worth_it = num_allowed > 1 and num_bytes.sum() > _WORTH_A_THREAD_BYTES
            with WriteBehind(write_batch, in_thread=is_worth_it) as behind:
                for job in jobs:
                    self._run(job, write_batch, behind, batch_rows)
            self._file.check_at_url()
            return
        single = [replace(job, groups=[group]) for job in jobs for group in job.groups]
        with ThreadPoolExecutor(num_threads, "fastloader-parquet") as pool:
            list(pool.map(run, single))  # an error cancels those that have not begun
        self._file.check_at_url()

    def _run(
        self,
        job: Job,
        write_batch: WriteBatch,
        write_behind: WriteBatch,
        batch_rows: int,
    ) -> None:
        """Read row groups one after the other and hand on their images.

        Args:
            job: What to read.
            write_batch: Writes images at once.
            write_behind: May write them while the next are read.
            batch_rows: Rows to hold at once, about.

        Raises:
            SourceError: If rows are missing.
        """
        paged = self._paged.get(job.piece)
        # Bytes are read where they are written, from a file that one thread has open.
        write_paged = write_behind if paged is None or paged.is_in_lists else write_batch
        left = [
            (group, row)
            for group in job.groups
            if (row := self._run_pages(job, group, write_paged, batch_rows)) is not None
        ]
        for groups, first_row in join_streams(left, self._file.group_starts):
            for some in self._file.streams(groups):
                self._run_stream(job, some, first_row, write_behind, batch_rows)

    def _run_pages(
        self, job: Job, group: int, write_batch: WriteBatch, batch_rows: int
    ) -> int | None:
        """Read a row group by page, and hand on images of it.

        Returns:
            First row that is left to be read as a stream; None if there are none.
        """
        start, stop = map(int, self._file.group_starts[group : group + 2])
        rows = job.rows[slice(*np.searchsorted(job.rows, (start, stop)))]
        paged = self._paged.get(job.piece)
        table, in_chunks = self._scan
        shapes, is_stored = table.shapes[start:stop], in_chunks[start:stop]
        if paged is None or not is_worth_pages(
            shapes,
            len(rows),
            is_in_lists=paged.is_in_lists,
            has_large_bytes=partial(paged.has_large_bytes, group),
        ):
            return start
        row_levels = shapes.prod(axis=1)
        row_levels[(is_stored != (job.piece == "chunks")) | (row_levels == 0)] = 1
        batches = paged.read(group, rows - start, row_levels, batch_rows)
        done = start
        try:
            for batch, numbers in batches:
                write_batch(batch, start + numbers)
                done = start + int(numbers[-1]) + 1
        except PageError:
            return done
        return None

    def _run_stream(
        self,
        job: Job,
        groups: Sequence[int],
        first_row: int,
        write_batch: WriteBatch,
        batch_rows: int,
    ) -> None:
        """Read row groups as one stream and hand on their images.

        Raises:
            SourceError: If rows are missing.
        """
        starts = self._file.group_starts
        numbers = np.concatenate([np.arange(*starts[group : group + 2]) for group in groups])
        with self._file.reading():
            batches = self._file.open().iter_batches(
                batch_rows, row_groups=list(groups), columns=job.leaves, use_threads=False
            )
            done = 0
            for batch in batches:
                row_numbers = numbers[done : done + batch.num_rows]
                done += batch.num_rows
                is_done = int(np.searchsorted(row_numbers, first_row))
                if is_done < len(row_numbers):
                    write_batch((batch.column(0)[is_done:], None), row_numbers[is_done:])
                if done < len(numbers) and numbers[done] > job.rows[-1]:
                    return
        if done != len(numbers):
            raise SourceError(f"{self.where}: expected {len(numbers)} rows, but got {done}.")

    @cached_property
    def _scan(self) -> tuple[ImageTable, npt.NDArray[np.bool_]]:
        """The table of images, and which of them are stored as chunks.

        Raises:
            SourceError: If rows are missing.
        """
        layout = self._layout
        leaves = self._leaves
        positions = leaves.positions(leaves.sizes)
        by_name = {
            path.rpartition(".")[2]: position
            for path, position in zip(leaves.sizes, positions, strict=True)
        }
        pixels = leaves.positions(list(leaves.pixels.values()))
        self._file.check_columns([*positions, *pixels])
        columns = leaves.sizes + leaves.planes_present
        may_be_alike = layout.has_chunks and layout.samples_per_pixel == 1
        reader = ImageTableReader(layout, self.where)
        with self._file.reading():
            file = self._file.open()
            for group in range(file.num_row_groups):
                metadata = file.metadata.row_group(group)
                alike = find_uniform(metadata, by_name) if may_be_alike else None
                if alike is not None and reader.add_uniform(
                    metadata.num_rows, alike.shape, alike.stated_type, alike.chunk_dtype
                ):
                    continue
                for batch in file.iter_batches(
                    row_groups=[group], columns=columns, use_threads=False
                ):
                    reader.add(batch.column(0))
        table = reader.finish()
        if table.num_rows != self._file.group_starts[-1]:
            raise SourceError(
                f"{self.where}: expected {self._file.group_starts[-1]} rows, but got {table.num_rows}."
            )
        self._check_against_footer(table, reader.in_chunks)
        return table, reader.in_chunks

    def _check_against_footer(
        self, table: ImageTable, in_chunks: npt.NDArray[np.bool_]
    ) -> None:
        """Check that each row group has about as many pixels as its images claim to have.

        The footer counts the numbers of a list, so this needs no pixels; bytes are not counted.

        Raises:
            ImageDataError: If an image claims more than there are.
        """
        metadata = self._file.open().metadata
        for name, is_stored in (
            ("chunks", in_chunks),
            ("planes", table.has_image & ~in_chunks),
        ):
            path = self._leaves.pixels.get(name)
            is_bytes = name == "chunks" and self._layout.has_byte_chunks
            if path is None or is_bytes or not is_stored.any():
                continue
            (leaf,) = self._leaves.positions([path])
            pixels = np.where(is_stored, table.shapes.prod(axis=1), 0)
            for group, first in enumerate(self._file.group_starts[:-1].tolist()):
                claimed = pixels[first : self._file.group_starts[group + 1]]
                stored = metadata.row_group(group).column(leaf).num_values
                if claimed.max(initial=0) > stored:
                    row = first + int(np.argmax(claimed))
                    raise ImageDataError(
                        f"{self.where}, row {row}: sizes T, C, Z, Y, X of "
                        f"{table.shapes[row].tolist()} are {int(claimed.max())} pixels, but its "
                        f"row group has {stored} pixels in all its {name}."
                    )
