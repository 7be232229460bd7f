"""Chunks and planes in record batches of Arrow IPC files, and their pixels apart from them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import has_structs, number_values, numpy_dtype
from fastloader.sources._image_runs import KnownRuns
from fastloader.sources._joined_lists import join_lists, num_items
from fastloader.sources._lz4_frame import Lz4Frame
from fastloader.sources._ome_arrow_layout import PIXELS
from fastloader.sources._pixels_apart import Fill, LoadPart, LoadPixels

__all__ = ["ApartBatch", "PixelLeaf", "find_pixel_leaf", "join_batches"]

Items: TypeAlias = npt.NDArray[np.generic]
"""Named, since functions in functions look their types up each time they are made."""

_SPARE_BYTES = 64 << 10
"""Beside twice its pixels, what a buffer may hold without being taken for damaged."""


@dataclass(frozen=True)
class ApartBatch:
    """The chunks or planes of a record batch."""

    lists: pa.Array
    """Lists of structs as they were read, not checked."""
    name: str
    """What they are: ``"chunks"`` or ``"planes"``."""
    of_pixels: str
    """Field of the structs: lists or bytes, whose items need not be there."""
    num_items: int
    """Numbers or bytes that `load` gives."""
    num_bytes: int
    """Of these."""
    load: LoadPixels
    """Gets the pixels."""
    load_part: LoadPart | None = None
    """Gets some of them without those before them, if that can be."""
    fill: Fill | None = None
    """Puts all of them where they stay, if that can be."""
    known: KnownRuns = field(default_factory=KnownRuns, compare=False)
    """Where pixels of its images are, as far as that was asked for."""

    @cached_property
    def column(self) -> pa.StructArray:
        """The same, checked, with lists of nothing in place of pixels, as `join_batches` has them."""
        return join_batches([self])


def join_batches(batches: "Sequence[ApartBatch]") -> pa.StructArray:
    """Return the chunks or planes of record batches as the only field of their images.

    Args:
        batches: At least one, of the same kind.
    """
    first = batches[0]
    lists = pa.chunked_array([one.lists for one in batches])
    return pa.StructArray.from_arrays([join_lists(lists, apart=first.of_pixels)], [first.name])


@dataclass(frozen=True, slots=True)
class PixelLeaf:
    """Where the pixels of chunks or planes are among the buffers of a record batch."""

    name: str
    """What they are: ``"chunks"`` or ``"planes"``."""
    field: str
    """Field of the structs."""
    dtype: np.dtype[np.generic]
    """Of its numbers; uint8 for bytes."""
    buffer: int
    """Number of the buffer that holds them."""

    def of_memory(self, lists: pa.Array) -> ApartBatch | None:
        """Take chunks or planes that are in memory, or mapped there.

        Args:
            lists: Of structs.

        Returns:
            None if some pixels are null.
        """
        pixels = lists.values.field(self.field)
        pixels.validate(full=True)  # that there are as many as it says
        items: Items
        if hasattr(pixels, "values"):
            if pixels.values.null_count:
                return None
            items = number_values(pixels.values)
        else:
            items = np.frombuffer(pixels.buffers()[-1] or b"", np.uint8)
        return self._batch(lists, pixels, lambda _: items)

    def of_buffer(
        self,
        lists: pa.Array,
        stored_bytes: int,
        first: Callable[[int], npt.NDArray[np.uint8]],
        reading: Callable[[], AbstractContextManager[None]],
        frame: Lz4Frame | None,
        fill: Callable[[npt.NDArray[np.uint8]], None] | None,
    ) -> ApartBatch | None:
        """Take chunks or planes whose pixels are still compressed.

        Args:
            lists: Of structs, read without the buffer of the pixels.
            stored_bytes: Length of that buffer when decompressed, as the file says.
            first: Returns so many of its first bytes.
            reading: Names the file in errors.
            frame: The same bytes, if parts of them can be read.
            fill: Puts all bytes where they stay, if that can be.

        Returns:
            None if some pixels are null, or the buffer has not the length of its pixels.
        """
        pixels = lists.values.field(self.field)
        if hasattr(pixels, "values") and pixels.values.null_count:
            return None

        size = self.dtype.itemsize

        def load(num_items: int) -> Items:
            with reading():
                return first(num_items * size).view(self.dtype)

        def load_part(start: int, stop: int) -> Items | None:
            part = None if frame is None else frame.part(start * size, stop * size)
            return None if part is None else part.view(self.dtype)

        def fill_items(target: Items) -> None:
            assert fill is not None  # noqa: S101 - asked for only then
            with reading():
                fill(target.view(np.uint8))

        batch = self._batch(
            lists,
            pixels,
            load,
            None if frame is None else load_part,
            None if fill is None else Fill(self.dtype, fill_items),
        )
        most_bytes = 2 * batch.num_bytes + _SPARE_BYTES
        return batch if batch.num_bytes <= stored_bytes <= most_bytes else None

    def _batch(
        self,
        lists: pa.Array,
        pixels: pa.Array,
        load: LoadPixels,
        load_part: LoadPart | None = None,
        fill: Fill | None = None,
    ) -> ApartBatch:
        count = num_items(pixels)
        num_bytes = count * self.dtype.itemsize
        return ApartBatch(lists, self.name, self.field, count, num_bytes, load, load_part, fill)


def find_pixel_leaf(
    schema: pa.Schema, column: str, name: str, paths: Sequence[tuple[str, ...]] | None
) -> PixelLeaf | None:
    """Return where the pixels of chunks or planes are, if it is in one buffer of its own.

    Args:
        schema: Of the file.
        column: Name of the image column.
        name: ``"chunks"`` or ``"planes"``.
        paths: Field of each buffer of a record batch, if known.
    """
    kind = schema.field(column).type.field(name).type
    if paths is None or not has_structs(kind):
        return None
    fields = [field for field in kind.value_type if field.name in PIXELS]
    if len(fields) != 1:
        return None
    path: tuple[str, ...] = (column, name, kind.value_field.name, fields[0].name)
    of_field = fields[0].type
    dtype: np.dtype[np.generic] | None = np.dtype(np.uint8)
    if not (pa.types.is_binary(of_field) or pa.types.is_large_binary(of_field)):
        if not hasattr(of_field, "value_field"):
            return None
        path += (of_field.value_field.name,)
        dtype = numpy_dtype(of_field.value_type)
    if dtype is None or dtype.kind == "b":  # truth values are bits
        return None
    last = len(paths) - 1 - paths[::-1].index(path)
    return PixelLeaf(name, fields[0].name, dtype, last)
