"""Sizes and pixel types of images, from metadata alone, checked before pixels are read."""

import warnings
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader._secrets import hide_secrets
from fastloader.errors import ImageDataError
from fastloader.sources._arrow_buffers import (
    decoded,
    integer_values,
    list_bounds,
    text_codes,
    valid_mask,
)
from fastloader.sources._ome_arrow_layout import SIZES, ColumnLayout
from fastloader.sources._protocol import ImageTable

__all__ = ["PIXEL_TYPES", "ImageTableReader", "find_outliers", "has_pieces"]

PIXEL_TYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}
"""Names that ``pixels_meta.type`` and a chunk's ``dtype`` may have."""

# What Arrow makes of Python numbers when no type is given: wider than what was meant.
_INFERRED = (np.dtype(np.int64), np.dtype(np.float64))
_OUTLIER, _OUTLIER_PIXELS = 8.0, 1e6
"""An image is checked first if it claims this many times the pixels of a usual one, and as many."""
_GIANT_PIXELS = 2**30
"""Of images that claim more, as a usual one may do itself, the largest is checked first."""
_MAX_PIXELS = 2**44

Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Part:
    shapes: Integers
    codes: Integers
    in_chunks: npt.NDArray[np.bool_]


class ImageTableReader:
    """Builds an `ImageTable` from record batches that hold an image column without pixels.

    Args of each batch: ``pixels_meta`` (sizes and type), of chunks ``shape_z``, ``shape_y``,
    ``shape_x`` (and ``dtype`` where chunks are bytes), of planes any number.
    """

    def __init__(self, layout: ColumnLayout, where: str) -> None:
        """Take what is known from the schema.

        Args:
            layout: How the column stores its images.
            where: File and column, for error messages.
        """
        self._layout = layout
        self._where = where
        self._num_rows = 0
        self._parts: list[_Part] = []
        self._dtypes: list[np.dtype[np.generic]] = []
        self._contradictions: dict[tuple[str, str], int] = {}

    def add(self, column: pa.StructArray) -> None:
        """Add the next rows.

        Args:
            column: The image column of a record batch.

        Raises:
            ImageDataError: If sizes are missing or absurd, or the chunks or planes of an
                image do not add up to it.
        """
        shapes = self._shapes(column)
        in_chunks = has_pieces(column, "chunks") & (shapes[:, 0] > 0)
        self._check_pieces(column, shapes, in_chunks)
        codes = self._type_codes(column, in_chunks, (shapes[:, 0] > 0) & ~in_chunks)
        self._parts.append(_Part(shapes, codes, in_chunks))
        self._num_rows += len(column)

    def add_uniform(
        self, num_rows: int, shape: tuple[int, ...], stated_type: str, chunk_dtype: str
    ) -> bool:
        """Add rows whose images are all alike and stored as chunks, if they make sense.

        Args:
            num_rows: Number of rows.
            shape: Sizes T, C, Z, Y, X of each image.
            stated_type: Pixel type by ``pixels_meta``, may be empty.
            chunk_dtype: Pixel type by the chunks; empty if they are lists.

        Returns:
            False if nothing was added: then `add` them one by one, which says what is wrong.
        """
        stored = PIXEL_TYPES.get(chunk_dtype) if chunk_dtype else self._layout.chunk_dtype
        if stored is None or np.prod(shape, dtype=np.float64) > _MAX_PIXELS:
            return False
        code = self._code_of(
            self._settle(stored, stated_type, may_narrow=not chunk_dtype, row=self._num_rows)
        )
        self._parts.append(
            _Part(
                np.tile(np.array(shape, np.int64), (num_rows, 1)),
                np.full(num_rows, code, np.int64),
                np.ones(num_rows, np.bool_),
            )
        )
        self._num_rows += num_rows
        return True

    def add_stated(self, column: pa.StructArray) -> bool:
        """Add the next rows by ``pixels_meta`` alone, trusting that their pieces fit.

        Args:
            column: The image column of a record batch; must have ``pixels_meta`` only.

        Returns:
            False if nothing was added, since pixel types are not to be had in this way.

        Raises:
            ImageDataError: If sizes are missing or absurd.
        """
        shapes = self._shapes(column)
        has_image = shapes[:, 0] > 0
        stored = self._layout.chunk_dtype or self._layout.plane_dtype
        stated, names = self._stated_types(column)
        codes = np.zeros(len(column), np.int64)
        for name in set(stated[has_image].tolist()):
            text = names[name] if name >= 0 else ""
            rows = has_image & (stated == name)
            dtype = PIXEL_TYPES.get(text)
            if not self._layout.has_byte_chunks and stored is not None:
                first_row = self._num_rows + int(np.argmax(rows))
                dtype = self._settle(stored, text, may_narrow=True, row=first_row)
            if dtype is None:
                return False
            codes[rows] = self._code_of(dtype)
        self._parts.append(_Part(shapes, codes, np.zeros(len(column), np.bool_)))
        self._num_rows += len(column)
        return True

    @property
    def dtypes(self) -> list[np.dtype[np.generic]]:
        """Pixel types so far."""
        return self._dtypes

    @property
    def in_chunks(self) -> npt.NDArray[np.bool_]:
        """Which images so far are stored as chunks; the others as planes."""
        return np.concatenate(
            [part.in_chunks for part in self._parts] or [np.zeros(0, np.bool_)]
        )

    def finish(self) -> ImageTable:
        """Return the table of all rows, and warn where pixels are not of the stated type."""
        for (stored, stated), row in self._contradictions.items():
            warnings.warn(
                f"{hide_secrets(self._where)}, row {row}: pixels are stored as {stored}, but "
                f"pixels_meta.type is {stated}, which does not fit in it: values may have been "
                f"lost when the file was written. They are read as {stored}.",
                stacklevel=2,
            )
        none = np.zeros((0, 5), np.int64)
        codes = [part.codes for part in self._parts]
        return ImageTable(
            np.concatenate([part.shapes for part in self._parts] or [none]),
            tuple(self._dtypes) or (np.dtype(np.uint8),),  # no row has an image
            np.concatenate(codes or [none[:, 0]]).astype(np.uint8),
        )

    def _shapes(self, column: pa.StructArray) -> Integers:
        """Return T, C, Z, Y, X of each image, 0 for a row without one."""
        pixels_meta = column.field("pixels_meta")
        has_image = valid_mask(column) & valid_mask(pixels_meta)
        shapes = np.zeros((len(column), 5), np.int64)
        for axis, name in enumerate(SIZES):
            values = self._integers(pixels_meta.field(name), name)
            shapes[:, axis] = np.where(has_image, values, 0)
        if self._layout.samples_per_pixel > 1:
            wrong = has_image & (shapes[:, 1] != 1)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise self._error(
                    row,
                    f"rgb='interleaved' is for images of one channel by their metadata, but this "
                    f"one has {shapes[row, 1]}",
                )
            shapes[:, 4] = (
                np.clip(shapes[:, 4], -1, _MAX_PIXELS) * self._layout.samples_per_pixel
            )
        # Sizes near 2**63 must not wrap around when multiplied: floats do not.
        pixels = np.prod(shapes.astype(np.float64), axis=1)
        absurd = has_image & ((shapes < 1).any(axis=1) | (pixels > _MAX_PIXELS))
        if absurd.any():
            row = int(np.argmax(absurd))
            raise self._error(
                row,
                f"expected sizes T, C, Z, Y, X of 1 or more and at most 2**44 pixels, but "
                f"got {shapes[row].tolist()}",
            )
        return shapes

    def _check_pieces(
        self, column: pa.StructArray, shapes: Integers, in_chunks: npt.NDArray[np.bool_]
    ) -> None:
        """Check that the pieces of each image add up to its size."""
        expected = shapes.prod(axis=1)
        has_image = expected > 0
        in_planes = has_image & ~in_chunks
        found = np.where(in_chunks, self._chunk_pixels(column), 0)
        if in_planes.any():
            found = np.where(in_planes, self._plane_pixels(column, shapes), found)
        wrong = has_image & (found != expected)
        if wrong.any():
            row = int(np.argmax(wrong))
            pieces = "chunks" if in_chunks[row] else "planes"
            raise self._error(
                row,
                f"the {pieces} hold {int(found[row])} pixels together, but sizes T, C, Z, Y, X "
                f"of {shapes[row].tolist()} are {int(expected[row])}: some are missing or "
                f"overlap, or the sizes are wrong",
            )

    def _chunk_pixels(self, column: pa.StructArray) -> Integers:
        """Return how many pixels the chunks of each image claim to hold together."""
        if not self._layout.has_chunks:
            return np.zeros(len(column), np.int64)
        start, stop, chunks = list_bounds(column.field("chunks"))
        filled = stop > start
        if not filled.any():
            return np.zeros(len(column), np.int64)
        first, last = int(start[filled].min()), int(stop[filled].max())
        chunks = chunks.slice(first, last - first)
        volumes = np.ones(last - first, np.int64)
        for name in ("shape_z", "shape_y", "shape_x"):
            values = self._integers(chunks.field(name), name)
            # Out of range counts as nothing, so that the sum cannot wrap around.
            volumes *= np.where((values > 0) & (values <= _MAX_PIXELS), values, 0)
            volumes[volumes > _MAX_PIXELS] = 0
        volumes *= self._layout.samples_per_pixel
        edges = np.concatenate([[0], np.cumsum(volumes)])
        start, stop = np.where(filled, start - first, 0), np.where(filled, stop - first, 0)
        return np.asarray(edges[stop] - edges[start])

    @staticmethod
    def _plane_pixels(column: pa.StructArray, shapes: Integers) -> Integers:
        """Return how many pixels the planes of each image hold together."""
        if column.type.get_field_index("planes") < 0:
            return np.zeros(len(column), np.int64)
        start, stop, _ = list_bounds(column.field("planes"))
        return np.asarray((stop - start) * shapes[:, 3] * shapes[:, 4])

    def _type_codes(
        self,
        column: pa.StructArray,
        in_chunks: npt.NDArray[np.bool_],
        in_planes: npt.NDArray[np.bool_],
    ) -> Integers:
        """Return the position of each image's pixel type in the list of all, noting new ones."""
        stored = np.full(len(column), -1, np.int64)
        kinds: list[np.dtype[np.generic] | None] = [
            self._layout.chunk_dtype,
            self._layout.plane_dtype,
        ]
        stored[in_chunks], stored[in_planes] = 0, 1
        if self._layout.has_byte_chunks and in_chunks.any():
            start, _, chunks = list_bounds(column.field("chunks"))
            codes, names = text_codes(chunks.field("dtype"))
            of_first = codes[start[in_chunks]]
            is_known = np.array([name in PIXEL_TYPES for name in names] + [False])  # -1 is null
            if not is_known[of_first].all():
                at = int(np.argmin(is_known[of_first]))
                got = "null" if of_first[at] < 0 else repr(names[of_first[at]])
                row = int(np.flatnonzero(in_chunks)[at])
                raise self._error(row, f"a chunk's dtype is {got}, no pixel type")
            stored[in_chunks] = of_first + len(kinds)
            kinds += [PIXEL_TYPES.get(name) for name in names]
        stated, stated_names = self._stated_types(column)
        result = np.zeros(len(column), np.int64)
        for kind, name in set(zip(stored.tolist(), stated.tolist(), strict=True)):
            dtype = kinds[kind] if kind >= 0 else None
            if dtype is None:
                continue
            rows = (stored == kind) & (stated == name)
            may_narrow = kind < 2  # bytes are what they say
            text = stated_names[name] if name >= 0 else ""
            first_row = self._num_rows + int(np.argmax(rows))
            result[rows] = self._code_of(
                self._settle(dtype, text, may_narrow=may_narrow, row=first_row)
            )
        return result

    def _stated_types(self, column: pa.StructArray) -> tuple[Integers, list[str]]:
        if not self._layout.has_pixel_type:
            return np.full(len(column), -1, np.int64), []
        return text_codes(column.field("pixels_meta").field("type"))

    def _settle(
        self, stored: np.dtype[np.generic], stated_name: str, *, may_narrow: bool, row: int
    ) -> np.dtype[np.generic]:
        """Return the type to read pixels as: as stored, unless Arrow guessed a wide one."""
        stated = PIXEL_TYPES.get(stated_name)
        if stated is None or stated == stored:
            return stored
        if may_narrow and np.can_cast(stated, stored, "safe"):
            return stated if stored in _INFERRED and stated != np.dtype(bool) else stored
        self._contradictions.setdefault((stored.name, stated.name), row)
        return stored

    def _code_of(self, dtype: np.dtype[np.generic]) -> int:
        if dtype not in self._dtypes:
            self._dtypes.append(dtype)
        return self._dtypes.index(dtype)

    def _integers(self, array: pa.Array, name: str) -> Integers:
        try:
            return integer_values(decoded(array))
        except (pa.ArrowException, ValueError) as error:
            raise ImageDataError(
                f"{self._where}, rows from {self._num_rows}: {name} is no whole number ({error})."
            ) from error

    def _error(self, row: int, what: str) -> ImageDataError:
        return ImageDataError(f"{self._where}, row {self._num_rows + row}: {what}.")


def find_outliers(table: ImageTable) -> Integers:
    """Return the rows of images that claim to be so large that their pieces are looked at first."""
    pixels = table.shapes.prod(axis=1)
    if pixels.max(initial=0) <= _OUTLIER_PIXELS:
        return np.zeros(0, np.int64)
    usual = float(np.median(pixels[table.has_image])) if table.has_image.any() else 0.0
    outliers = np.flatnonzero(pixels > max(_OUTLIER * usual, _OUTLIER_PIXELS))
    if not len(outliers) and pixels.max(initial=0) > _GIANT_PIXELS:
        outliers = np.array([pixels.argmax()])
    return outliers


def has_pieces(column: pa.StructArray, name: str) -> npt.NDArray[np.bool_]:
    """Return which rows have at least one of the chunks or planes that `name` says."""
    if column.type.get_field_index(name) < 0 or pa.types.is_null(column.field(name).type):
        return np.zeros(len(column), np.bool_)
    start, stop, _ = list_bounds(column.field(name))
    is_filled = np.asarray(stop > start)
    return is_filled & valid_mask(column) if column.null_count else is_filled
