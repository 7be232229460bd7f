"""Writes images as an OME-Arrow table: streamed, whole or not at all."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from fastloader._atomic import replacing
from fastloader._progress_bar import Progress, ProgressBar, progress_bar
from fastloader._secrets import hide_secrets
from fastloader.errors import DestinationError, FastLoaderError, SettingsError
from fastloader.sampling._epoch_sampler import whole_number
from fastloader.sources import (
    ClosableSource,
    ColumnValues,
    SourcePath,
    arrow_type_of,
    open_source,
)
from fastloader.sources._paths import is_url
from fastloader.writing._image_column import VERSION, image_column
from fastloader.writing._image_rows import ImageRows, RowBlock, SampleRows, SourceRows
from fastloader.writing._table_formats import choose_format

__all__ = ["Compression", "WrittenTable", "convert", "write_images"]

Compression: TypeAlias = Literal["auto", "zstd", "lz4"] | None

_IMAGE_COLUMN = "ome_arrow"  # as ome-arrow's readers expect it
_MIN_ROWS, _MAX_ROWS = 16, 64
_GROUP_BYTES = 16 << 20
"""Pixels of a row group, about, within the bounds above."""
_MAX_GROUP_BYTES = 512 << 20
"""Of few large images: the most to hold at once, several times over while it is compressed."""
_DECOMPRESSED_BYTES = 4 << 20
"""Of a group of which no row can be decompressed alone: half as many cost a seventh more time to read all."""


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """What was written."""

    path: Path
    """The file or folder."""
    num_images: int
    """Rows, with and without an image."""
    num_bytes: int
    """Size on disk."""


def convert(
    source: SourcePath | Sequence[SourcePath],
    destination: str | os.PathLike[str],
    *,
    image_column: str | None = None,
    source_format: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    format: str | None = None,  # noqa: A002 - as in OMEArrowDataset
    compression: Compression = "auto",
    rows_per_group: int | None = None,
    overwrite: bool = False,
    progress: Progress = "auto",
) -> WrittenTable:
    """Write images from any source as an OME-Arrow table, with the columns beside them.

    Pixels keep their type and every bit, as byte chunks, which are several times faster to read
    than lists of numbers. Memory does not grow with the number of images, but in the
    writer of Vortex; that of DuckDB needs room for 2048 images. The destination appears when it
    is complete.

    Args:
        source: A file or folder of images, or several files that follow one another.
        destination: Table to write: ``.parquet``, ``.lance``, ``.duckdb``, ``.vortex`` or
            ``.arrow``.
        image_column: Column of the images, where `source` is a table with several.
        source_format: What `source` is (`fastloader.sources.FORMATS`); found when left out.
        source_options: Options of the source's format.
        format: What to write; by the ending of `destination` when left out.
        compression: ``"auto"`` is zstd in Parquet and Arrow files, and none in Lance tables, which are
            read in half of the time so, and DuckDB files, of which a row would else take 2048 to be
            decompressed; Vortex chooses.
        rows_per_group: Images that are stored, and later read, together; 16 to 64 when left
            out, by their size; of compressed Arrow files as many as make 4 MiB, since a row there
            takes all before it to be decompressed.
        overwrite: Replace the table at `destination`, once the new one is complete; a folder
            of other things is never replaced.
        progress: Show a bar if it takes more than two seconds; "auto" shows it in a terminal.

    Raises:
        SourceError: If an image cannot be read.
        SettingsError: If an option does not fit.
        DestinationError: If the table cannot be written.
        MissingExtraError: If a format needs a package that is not installed.

    Examples:
        >>> convert("data/nf1_cells.parquet", "cells.arrow").num_images
        336
    """
    if source_options is not None and not isinstance(source_options, Mapping):
        raise SettingsError(
            f"source_options={source_options!r:.100}: expected a dict of options of the source's format."
        )
    opened = open_source(
        source, image_column, format=source_format, **dict(source_options or {})
    )
    try:
        return _write(
            SourceRows(opened),
            destination,
            format,
            compression,
            rows_per_group,
            overwrite,
            progress,
        )
    finally:
        if isinstance(opened, ClosableSource):
            opened.close()


def write_images(
    images: Iterable[Any],
    destination: str | os.PathLike[str],
    *,
    axes: str | None = None,
    channel_names: Sequence[str] | None = None,
    columns: Mapping[str, ColumnValues] | None = None,
    format: str | None = None,  # noqa: A002 - as in OMEArrowDataset
    compression: Compression = "auto",
    rows_per_group: int | None = None,
    overwrite: bool = False,
    progress: Progress = "auto",
) -> WrittenTable:
    """Write images as an OME-Arrow table: of an array, a list, a generator or a dataset.

    Args:
        images: An array with images along its first axis, or anything that gives samples: an
            image, a tuple of an image and labels, or a dict with ``"image"``. Labels become
            the column ``label``, or ``label_0`` and so on; other keys columns of their names.
        destination: Table to write, as for `convert`.
        axes: Axes of an image, any order of a part of ``"TCZYX"``. When left out, ``"YX"``,
            ``"CYX"``, ``"CZYX"`` or ``"TCZYX"`` by their number.
        channel_names: Names of the channels of all images.
        columns: Further columns, a value for each image: lists, arrays, tensors, or columns of
            pyarrow or pandas; also a table of pandas.
        format: What to write; by the ending of `destination` when left out.
        compression: ``"auto"`` is zstd in Parquet and Arrow files, and none in Lance tables, which are
            read in half of the time so, and DuckDB files, of which a row would else take 2048 to be
            decompressed; Vortex chooses.
        rows_per_group: Images that are stored, and later read, together; 16 to 64 when left
            out, by their size; of compressed Arrow files as many as make 4 MiB, since a row there
            takes all before it to be decompressed.
        overwrite: Replace the table at `destination`, once the new one is complete; a folder
            of other things is never replaced.
        progress: Show a bar if it takes more than two seconds; "auto" shows it in a terminal.

    Raises:
        ShapeError: If an image does not have the axes, or is of no pixel type.
        SettingsError: If an option does not fit.
        DestinationError: If the table cannot be written.
        MissingExtraError: If the format needs a package that is not installed.

    Examples:
        >>> import numpy as np
        >>> images = np.zeros((10, 2, 64, 64), np.uint8)
        >>> write_images(images, "zeros.parquet", columns={"plate": ["a"] * 10}).num_images
        10
    """
    rows = SampleRows(images, axes, channel_names, {} if columns is None else columns)
    return _write(rows, destination, format, compression, rows_per_group, overwrite, progress)


def _write(
    rows: ImageRows,
    destination: str | os.PathLike[str],
    format_name: str | None,
    compression: Compression,
    rows_per_group: int | None,
    overwrite: bool,
    progress: Progress,
) -> WrittenTable:
    if not isinstance(destination, str | os.PathLike):
        raise SettingsError(f"{destination!r:.100} is no path of a table to write.")
    if is_url(os.fspath(destination)):
        raise SettingsError(
            f"{hide_secrets(os.fspath(destination))} is a URL: expected a path on a local disk, from which "
            f"the table can be copied when it is complete."
        )
    target = Path(destination)
    chosen = choose_format(target, format_name, compression)
    if rows_per_group is not None and whole_number("rows_per_group", rows_per_group) < 1:
        raise SettingsError(f"rows_per_group={rows_per_group}: expected 1 or more.")
    _check_no_other_folder(target)
    codec = chosen.is_compressed_by[0] if compression == "auto" else compression
    gives_rows_singly = chosen.gives_rows_singly or codec is None
    num_rows = rows_per_group or _choose_rows(rows.first_size_bytes(), gives_rows_singly)
    with (
        replacing(target, overwrite=overwrite) as path,
        progress_bar(rows.num_rows, progress, what="Writing") as bar,
    ):
        stream = _Stream(rows, num_rows, bar)
        try:
            chosen.write(path, stream.schema, stream, codec)
        except FastLoaderError:
            raise
        except Exception as error:
            stream.raise_own_error()
            raise DestinationError(f"{target} cannot be written ({error}).") from error
        stream.raise_own_error()
    return WrittenTable(target, stream.num_images, _size_bytes(target))


class _Stream:
    """Record batches of images, made when they are asked for."""

    def __init__(self, rows: ImageRows, num_rows: int, bar: ProgressBar) -> None:
        self._blocks = rows.blocks(num_rows)
        self._bar = bar
        self._error: BaseException | None = None
        # Of the first rows alone, nulls, empty lists or small decimals would be of another type.
        self._types = {name: _type_of(name, values) for name, values in rows.columns.items()}
        self.num_images = 0
        first = next(self._blocks, None)
        # Columns are there also where there are no rows.
        start = first or RowBlock(
            [], [], {name: part[:0] for name, part in rows.columns.items()}
        )
        self._pending = [start] if first else []
        batch = self._batch(start)
        self._types |= {field.name: field.type for field in batch.schema}
        self.schema = batch.schema.with_metadata({
            "ome.arrow.type": "ome.arrow",
            "ome.arrow.version": VERSION,
        })

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            pending, self._pending = self._pending, []
            for block in chain(pending, self._blocks):
                batch = self._batch(block)
                self.num_images += batch.num_rows
                yield batch
                self._bar.advance(batch.num_rows)
        except GeneratorExit:
            raise
        except BaseException as error:  # Ctrl-C among them
            self._error = error  # the formats' writers would raise others in its place
            raise

    def raise_own_error(self) -> None:
        """Raise what went wrong while images were made.

        Raises:
            Exception: That.
        """
        if self._error is not None:
            raise self._error

    def _batch(self, block: RowBlock) -> pa.RecordBatch:
        first = self.num_images
        if _IMAGE_COLUMN in block.columns:
            raise SettingsError(
                f"A column beside the images is called {_IMAGE_COLUMN!r}, as the column of the "
                f"images will be: rename it."
            )
        columns = {_IMAGE_COLUMN: image_column(block.images, block.descriptions, first)}
        for name, values in block.columns.items():
            columns[name] = self._column(name, values)
        return pa.RecordBatch.from_pydict(columns)

    def _column(self, name: str, values: ColumnValues) -> pa.Array:
        try:
            return pa.array(values, self._types.get(name))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            kind = self._types.get(name, "one Arrow type")
            raise SettingsError(
                f"Column {name!r}, rows from {self.num_images}: the values are not of {kind}, "
                f"as those before ({error})."
            ) from error


def _type_of(name: str, values: ColumnValues) -> pa.DataType:
    """Return the type that all values of a column have.

    Raises:
        SettingsError: If there is none.
    """
    try:
        return arrow_type_of(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SettingsError(
            f"Column {name!r}: the values are not of one Arrow type ({error})."
        ) from error


def _check_no_other_folder(target: Path) -> None:
    """Check that no folder of other things would be replaced: of tables, only Lance's are folders.

    Raises:
        DestinationError: If one would.
    """
    if not target.is_dir() or (target / "_versions").is_dir() or not any(target.iterdir()):
        return
    raise DestinationError(
        f"{target} is a folder with other things than a table in it, which is never replaced: "
        f"choose another name, such as {target / 'images.parquet'}, or remove it first."
    )


def _choose_rows(image_bytes: int, gives_rows_singly: bool) -> int:
    """Return how many images make a row group."""
    if not gives_rows_singly:
        return max(1, min(_MAX_ROWS, _DECOMPRESSED_BYTES // max(1, image_bytes)))
    num_rows = min(_MAX_ROWS, max(_MIN_ROWS, _GROUP_BYTES // max(1, image_bytes)))
    return max(1, min(num_rows, _MAX_GROUP_BYTES // max(1, image_bytes)))


def _size_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
