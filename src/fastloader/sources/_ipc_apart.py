"""Chunks and planes of Arrow IPC files, whose pixels are found before they are read."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._ipc_file import IpcFile, IsKept, reading_file
from fastloader.sources._ipc_message import BatchHeader
from fastloader.sources._ipc_pixels import ApartBatch, PixelLeaf, find_pixel_leaf
from fastloader.sources._kept_blocks import KeptBlocks
from fastloader.sources._location import PathLike, StorageOptions
from fastloader.sources._mapped_pages import read_view
from fastloader.sources._pixels_apart import ReadPixels
from fastloader.sources._stored_buffer import StoredBuffer, decompress_all, decompress_first

__all__ = ["IpcApart"]


class IpcApart(IpcFile):
    """The record batches of an Arrow IPC file, and the pixels of each apart.

    **Processes:** as the file.
    """

    def __init__(self, path: PathLike, storage_options: StorageOptions = None) -> None:
        """Look at the file; arguments and errors as of `IpcFile`."""
        self._leaves: dict[tuple[str, str], PixelLeaf | None] = {}
        self._decompressed = KeptBlocks()
        super().__init__(path, storage_options)

    def close(self) -> None:
        """Let go of what this thread has open; it is opened again when needed."""
        super().close()
        self._decompressed.clear()

    def find_leaf(self, column: str, name: str) -> PixelLeaf | None:
        """Return where the pixels of chunks or planes are, if in one buffer of their own.

        Args:
            column: Name of the image column.
            name: ``"chunks"`` or ``"planes"``.
        """
        if (column, name) not in self._leaves:
            leaf = find_pixel_leaf(self.schema, column, name, self.buffer_paths)
            self._leaves[column, name] = leaf
        return self._leaves[column, name]

    def read_views(
        self, numbers: Sequence[int], column: str, name: str, leaf: PixelLeaf
    ) -> list[ApartBatch | None]:
        """Return chunks or planes of record batches of a mapped file.

        Args:
            numbers: Of the record batches.
            column: Name of the image column.
            name: ``"chunks"`` or ``"planes"``.
            leaf: Where their pixels are.

        Returns:
            Those of each record batch; None where pixels cannot be told from them.
        """
        lists = self.read_batches(numbers, column, None)[name]
        return [leaf.of_memory(part) for part in lists.chunks]

    def read_view(
        self, number: int, column: str, name: str, leaf: PixelLeaf
    ) -> ApartBatch | None:
        """Return those of one record batch, which may be looked at again; as `read_views`."""
        make: Callable[[], ApartBatch | None] = lambda: self.read_views(  # noqa: E731
            [number], column, name, leaf
        )[0]
        return self._kept((column, str(number), name), make)

    def read_compressed(
        self,
        number: int,
        column: str,
        name: str,
        leaf: PixelLeaf,
        is_kept: IsKept | None,
        *,
        asked: Sequence[int] | None,
    ) -> ApartBatch | None:
        """Return chunks or planes of a record batch that is no view of a mapped file.

        Args:
            number: Of the record batch.
            column: Name of the image column.
            name: ``"chunks"`` or ``"planes"``.
            leaf: Where their pixels are.
            is_kept: From `find_buffers`.
            asked: Record batches that are read for some of their rows; None where all rows are.

        Returns:
            None if pixels cannot be told from them.
        """
        header = self._headers[number]
        if header.codec is None or is_kept is None or len(is_kept) != header.num_buffers:
            return None
        key = (number, column, name)
        batch: ApartBatch | None = self._decompressed.get(key)
        if batch is None:
            is_kept = is_kept.copy()
            is_kept[leaf.buffer] = False
            lists = self.read_batches([number], column, is_kept)[name].chunk(0)
            stored, codec = self._buffer_of(header, leaf.buffer), header.codec
            is_local = self._location.is_local
            buffer = StoredBuffer(stored, codec)
            is_small = buffer.num_bytes * len(self._headers) <= KeptBlocks.max_bytes
            is_part = asked is not None and is_local and not is_small
            frame = buffer.find_frame() if is_part else None
            keeps = asked is not None and frame is None and self._can_keep(asked)
            # What is not kept is forgotten by each buffer, so that the next one finds its memory free.
            first = (
                buffer.first if keeps else partial(decompress_first, stored, codec, is_local)
            )
            # Of all rows, each is read once.
            fill = partial(decompress_all, stored, codec, is_local) if asked is None else None
            # Not by a method, through which what is kept would keep its owner.
            reading = partial(reading_file, self.path)
            batch = leaf.of_buffer(lists, buffer.num_bytes, first, reading, frame, fill)
            if batch is not None and (keeps or frame is not None):
                kept_bytes = buffer.num_bytes if frame is None else frame.nbytes
                self._decompressed.put(key, batch, kept_bytes)
        return batch

    def reading_apart(self) -> ReadPixels | None:
        """Return what reads pixels of which record batches are views; None if they are none.

        Pages of a mapped file that are looked at count as memory, and take a fifth of their copy.
        """
        if not self._is_mapped:
            return None
        mapped = self._opened.get()
        mapped.seek(0)
        start = mapped.read_buffer(1).address
        with self.reading():
            file = self._checked(pa.OSFile(self.path))
        return partial(read_view, self.path, file, range(start, start + mapped.size()))

    def _can_keep(self, numbers: Sequence[int]) -> bool:
        """Return whether record batches can be kept together, so that one may be found again."""
        num_bytes = sum(self._headers[number].body_bytes for number in numbers)
        return num_bytes <= KeptBlocks.max_bytes

    def _buffer_of(self, header: BatchHeader, number: int) -> npt.NDArray[np.uint8]:
        """Return a buffer as it lies in the file."""
        start, size = header.place(number)
        if self._location.is_local:
            mapping, _ = self._copied.get()
            return np.frombuffer(mapping, np.uint8, size, header.body_at + start)
        return np.frombuffer(self._opened.get().read_at(size, header.body_at + start), np.uint8)
