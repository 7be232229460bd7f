"""The folders that ome-arrow writes: a table of images and one of their chunks, side by side."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.errors import ImageDataError, SourceError
from fastloader.sources._chunk_table import ChunkTable, column_integers, require_columns
from fastloader.sources._column_values import column_values
from fastloader.sources._conditions import columns_of, matching_rows
from fastloader.sources._description import ImageDescription
from fastloader.sources._jobs import run_job
from fastloader.sources._location import Location
from fastloader.sources._ome_arrow_layout import SIZES, refuse_column
from fastloader.sources._ome_arrow_table import PIXEL_TYPES
from fastloader.sources._parquet_handle import ParquetHandle
from fastloader.sources._paths import PathLike, StorageOptions, path_text
from fastloader.sources._protocol import ColumnValues, ImageTable, WritePixels

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["MANIFEST", "OmeArrowFolder"]

Integers: TypeAlias = npt.NDArray[np.int64]

MANIFEST = "_ome_arrow_dataset.json"
_LAYOUT = "typed-chunk-dataset"
_CHUNK_SIZES = ("chunk_t", "chunk_c", "chunk_z", "chunk_y", "chunk_x")
_OF_PIXELS = {*SIZES, *_CHUNK_SIZES, "dtype", "layout", "compression", "channels_json"}
_MOST_PIXELS = 1 << 44
_PART_BYTES = 64 << 20


class OmeArrowFolder:
    """Images in a folder written by ``ome_arrow.write_ome_arrow_dataset``.

    Columns: those of its table of images that do not describe the pixels, such as ``image_id``
    and ``name``.

    **Processes:** holds paths and plain values; each process and thread opens the files for
    itself. Files that were replaced since are an error.

    References:
        ome-arrow 0.0.10 to 0.1.0, https://github.com/WayScience/ome-arrow.
    """

    def __init__(self, path: PathLike, *, storage_options: StorageOptions = None) -> None:
        """Read the table of images and the places of all chunks.

        Args:
            path: The folder, or its manifest, also by URL.
            storage_options: Arguments of fsspec's file system, for URLs.

        Raises:
            SourceError: If this is no such folder, or a file of it cannot be read.
            ImageDataError: If sizes are absurd, or chunks missing or outside of their image.
        """
        given, mark, query = path_text(path).partition("?")
        folder = Location(
            f"{given.removesuffix(MANIFEST) or '.'}{mark}{query}", storage_options
        )
        self._root = folder.path
        _check_manifest(folder.inside(MANIFEST))
        self._images_file, self._chunks_file = (
            ParquetHandle(folder.inside(name).path, storage_options)
            for name in ("images.parquet", "chunks.parquet")
        )
        with self._images_file.reading():
            images = self._images_file.open().read(use_threads=False)
        require_columns(
            images.schema, ("image_id", "dtype", *SIZES, *_CHUNK_SIZES), self._images_file.path
        )
        self._column_names = tuple(n for n in images.column_names if n not in _OF_PIXELS)
        self._table = _image_table(images, self._images_file.path)
        self._chunks = ChunkTable(
            self._chunks_file,
            [str(text) for text in images.column("image_id").to_pylist()],
            self._table.shapes,
            _sizes(images, _CHUNK_SIZES, self._images_file.path),
        )

    @property
    def where(self) -> str:
        """The folder, as error messages name it."""
        return self._root

    @property
    def fingerprint(self) -> str:
        """Hash of what tells both files from others."""
        files = (self._images_file, self._chunks_file)
        text = " ".join(file.fingerprint for file in files)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def num_rows(self) -> int:
        """Number of images."""
        return self._table.num_rows

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns of the table of images that do not describe the pixels."""
        return self._column_names

    def read_table(self) -> ImageTable:
        """Return sizes and pixel types of all images."""
        return self._table

    def read_channel_names(self) -> list[tuple[str | None, ...]]:
        """Return the names of the channels of each image, as far as there are some.

        Raises:
            SourceError: If the file cannot be read.
        """
        if "channels_json" not in self._images_file.leaf_paths:
            return [()] * self.num_rows
        texts = self._read_images_column("channels_json").to_pylist()
        return [_channel_names(text) for text in texts]

    def iterate_descriptions(self) -> Iterator[ImageDescription]:
        """Yield what is known of each image beside its pixels, row after row.

        Raises:
            SourceError: If the file cannot be read.
        """
        leaves = self._images_file.leaf_paths
        known = [name for name in ("name", "image_type", "channels_json") if name in leaves]
        with self._images_file.reading():
            images = self._images_file.open()
            for batch in images.iter_batches(columns=["image_id", *known], use_threads=False):
                for row in batch.to_pylist():
                    meta = {"channels": _channels(row.get("channels_json"))}
                    yield ImageDescription.of({
                        **row,
                        "id": row["image_id"],
                        "pixels_meta": meta,
                    })

    def read_column(self, name: str) -> ColumnValues:
        """Return the values of a column; see `ImageSource.read_column`.

        Raises:
            SourceError: If there is no such column or it cannot be read.
        """
        if name not in self._column_names:
            schema = self._images_file.open().schema_arrow
            refuse_column(name, self._column_names, schema, self._images_file.path)
        return column_values(
            self._read_images_column(name), f"{self._images_file.path}, column {name!r}"
        )

    def find_rows(self, condition: "pc.Expression") -> Integers:
        """Return the numbers of the images that meet a condition; see `ImageSource.find_rows`.

        Raises:
            SettingsError: If the condition does not fit the columns.
            SourceError: If the file cannot be read.
        """
        names = columns_of(condition, self._column_names) or self._column_names[:1]
        columns = {name: self._read_images_column(name) for name in names}
        return matching_rows(pa.table(columns), condition, self._images_file.path)

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

        Raises:
            SourceError: If a file cannot be read.
            ImageDataError: If the pixels of an image make no sense.
        """
        if not len(rows):
            return
        sizes = self._table.shapes[rows].prod(axis=1) * self._table.item_sizes_of(rows)
        job = _ReadJob(self, rows, offsets, sizes, write, channels)

        def take_result(_: int, num_images: int) -> None:
            if on_rows is not None:
                on_rows(num_images)

        run_job(job, take_result, num_cores=num_threads)

    def read_some(
        self,
        rows: Integers,
        offsets: Integers,
        write: WritePixels,
        channels: Sequence[int] | None,
    ) -> int:
        """Read images with one thread; arguments as for `read_images`.

        Args:
            rows: Row numbers.
            offsets: Position of each image's first byte.
            write: Called once for each image.
            channels: Channels to keep; all if None.

        Returns:
            How many there were.

        Raises:
            SourceError: If chunks are missing.
        """
        grid = self._chunks.grid
        target = dict(zip(rows.tolist(), offsets.tolist(), strict=True))
        left = {row: grid.num_chunks(row) for row in target}
        started: dict[int, npt.NDArray[Any]] = {}
        for number, dtype, content in self._chunks.stream(grid.chunks_of(rows)):
            row = int(grid.image[number])
            if row not in left:
                continue
            if row not in started:
                kind = self._table.dtypes[self._table.dtype_codes[row]]
                started[row] = np.empty(self._table.shapes[row], kind)
            self._place(started[row], row, number, dtype, content)
            left[row] -= 1
            if not left[row]:
                image = started.pop(row)
                kept = image if channels is None else image[:, list(channels)]
                write(target[row], np.ascontiguousarray(kept))
                del left[row]
        if left:
            raise SourceError(
                f"{self._chunks_file.path} ended before all chunks of image {min(left)} were read."
            )
        return len(rows)

    def _place(
        self,
        image: npt.NDArray[Any],
        row: int,
        number: int,
        dtype: str | None,
        content: npt.NDArray[np.uint8],
    ) -> None:
        """Put a chunk into its image.

        Raises:
            ImageDataError: If it is of another type or length.
        """
        shape = self._chunks.grid.shape[number]
        num_bytes = int(shape.prod()) * image.dtype.itemsize
        if dtype != image.dtype.name or len(content) != num_bytes:
            raise ImageDataError(
                f"{self._chunks_file.path}, row {number}: expected {num_bytes} bytes of "
                f"{image.dtype.name} for image {row}, but got {len(content)} of {dtype}."
            )
        if image.dtype.kind == "b":
            content = (content != 0).view(np.uint8)
        # Arrow's bytes may lie at any address.
        values = np.frombuffer(content.tobytes(), image.dtype).reshape(shape)
        origin = self._chunks.grid.origin[number].tolist()
        box = tuple(slice(a, a + n) for a, n in zip(origin, shape.tolist(), strict=True))
        image[box] = values

    def _read_images_column(self, name: str) -> pa.ChunkedArray:
        with self._images_file.reading():
            return self._images_file.open().read(columns=[name], use_threads=False).column(0)


class _ReadJob:
    """The images of some rows, in parts of neighbours."""

    def __init__(
        self,
        source: OmeArrowFolder,
        rows: Integers,
        offsets: Integers,
        sizes_bytes: Integers,
        write: WritePixels,
        channels: Sequence[int] | None,
    ) -> None:
        self._source = source
        self._rows = rows
        self._offsets = offsets
        self._write = write
        self._channels = channels
        part_of = (np.cumsum(sizes_bytes) - sizes_bytes) // _PART_BYTES
        self._starts = np.append(np.flatnonzero(np.diff(part_of, prepend=-1)), len(rows))

    @property
    def num_parts(self) -> int:
        return len(self._starts) - 1

    def run(self, part: int) -> int:
        some = slice(int(self._starts[part]), int(self._starts[part + 1]))
        return self._source.read_some(
            self._rows[some], self._offsets[some], self._write, self._channels
        )


def _check_manifest(file: Location) -> None:
    """Check that a folder is one of ome-arrow's, and of a layout that is known.

    Raises:
        SourceError: If not.
    """
    path = file.path
    try:
        with file.opened() as opened:
            layout = json.loads(opened.readall())["layout"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{path} cannot be read as ome-arrow's manifest ({error})."
        ) from error
    if layout != _LAYOUT:
        raise SourceError(f"{path}: the layout is {layout!r}, but only {_LAYOUT!r} is known.")


def _sizes(images: pa.Table, names: Sequence[str], path: str) -> Integers:
    """Return columns of whole numbers as those of a matrix."""
    columns = [column_integers(images.column(name), path, name) for name in names]
    return np.stack(columns, axis=1)


def _image_table(images: pa.Table, path: str) -> ImageTable:
    shapes = _sizes(images, SIZES, path)
    num_pixels = shapes.astype(np.float64).prod(axis=1)
    is_absurd = (shapes < 1).any(axis=1) | (num_pixels > _MOST_PIXELS)
    if is_absurd.any():
        row = int(np.argmax(is_absurd))
        raise ImageDataError(
            f"{path}, row {row}: expected sizes T, C, Z, Y, X of 1 or more and at most 2**44 "
            f"pixels, but got {shapes[row].tolist()}."
        )
    names = images.column("dtype").to_pylist()
    unknown = [row for row, name in enumerate(names) if name not in PIXEL_TYPES]
    if unknown:
        raise ImageDataError(
            f"{path}, row {unknown[0]}: the dtype {names[unknown[0]]!r} is none of "
            f"{', '.join(PIXEL_TYPES)}."
        )
    distinct = list(dict.fromkeys(names))
    codes = np.array([distinct.index(name) for name in names], np.uint8)
    return ImageTable(shapes, tuple(PIXEL_TYPES[name] for name in distinct), codes)


def _channels(text: str | None) -> list[Mapping[str, Any]]:
    """Return what is said of the channels; nothing if it makes no sense."""
    try:
        channels = json.loads(text or "[]")
    except ValueError:
        return []
    if not isinstance(channels, list) or not all(isinstance(one, dict) for one in channels):
        return []
    return channels


def _channel_names(text: str | None) -> tuple[str | None, ...]:
    names = (channel.get("name") for channel in _channels(text))
    return tuple(None if name is None else str(name) for name in names)
