"""Images that are read many at once, without the interpreter's lock."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.shm import ArrayWriter, MemoryWriter
from fastloader.sources._compiled_kind import CompiledWay
from fastloader.sources._decode_job import DecodeJob, ImageDecoder, run_decode_job
from fastloader.sources._protocol import WritePixels
from fastloader.sources._raw_pixels import RawReader, ReadPieces, raw_reader

__all__ = ["read_compiled"]

Integers: TypeAlias = npt.NDArray[np.int64]


def read_compiled(
    decoder: ImageDecoder,
    rows: Integers,
    offsets: Integers,
    shapes: Integers,
    sizes: Integers,
    write: WritePixels,
    on_rows: Callable[[int], None] | None,
    num_cores: int,
) -> npt.NDArray[np.bool_]:
    """Read the images that need no Python.

    Args:
        decoder: Knows where their pixels are, and decodes those that are not as expected.
        rows: Row numbers.
        offsets: Position of each image's first byte.
        shapes: Sizes T, C, Z, Y, X of each.
        sizes: Bytes of each.
        write: Puts pixels there.
        on_rows: Called with the number of images written since the last call.
        num_cores: Images to read at once.

    Returns:
        Which of the images were read.
    """
    is_done = np.zeros(len(rows), np.bool_)
    if (reader := raw_reader()) is None:
        return is_done
    kinds: dict[CompiledWay, type[_CompiledJob]] = {
        CompiledWay.RAW: _RawJob,
        CompiledWay.SEGMENTS: _SegmentJob,
        CompiledWay.CHUNKS: _ChunkJob,
    }
    ways = decoder.compiled_ways(rows)
    for way, job_type in kinds.items():
        if (chosen := ways == way).any():
            images = (rows[chosen], offsets[chosen], shapes[chosen], sizes[chosen])
            job = job_type(reader, decoder, *images, write, num_cores)
            run_decode_job(job, on_rows, num_cores, in_processes=False)
            is_done |= chosen
    return is_done


class _CompiledJob(DecodeJob, ABC):
    """Images that are read many at once, without the interpreter's lock."""

    def __init__(
        self,
        reader: RawReader,
        decoder: ImageDecoder,
        rows: Integers,
        offsets: Integers,
        shapes: Integers,
        sizes_bytes: Integers,
        write: WritePixels,
        num_cores: int,
    ) -> None:
        super().__init__(decoder, rows, offsets, shapes, sizes_bytes, write, None, num_cores)
        self._reader = reader

    def run(self, part: int) -> None:
        images = self._images_of(part)
        some = slice(images.start, images.stop)
        if isinstance(self._write, ArrayWriter | MemoryWriter):
            self._read_all(images, self._offsets[some], self._write)
            return
        buffer = self._scratch_array((self.buffer_bytes,), np.dtype(np.uint8))
        places = self._places[some] - self._places[images.start]
        self._read_all(images, places, ArrayWriter(buffer))
        self.take(part, buffer)

    def _read_all(
        self, images: range, offsets: Integers, target: ArrayWriter | MemoryWriter
    ) -> None:
        while images:
            num_read = self._read(images, offsets, target)
            images, offsets = images[num_read:], offsets[num_read:]
            if images:
                # Python knows what is wrong.
                in_place = target if isinstance(target, ArrayWriter) else self._in_place
                self._decode_to(images[0], int(offsets[0]), in_place, target)
                images, offsets = images[1:], offsets[1:]

    @abstractmethod
    def _read(
        self, images: range, offsets: Integers, target: ArrayWriter | MemoryWriter
    ) -> int:
        """Return how many were read before one could not be."""

    def _encoded_paths(self, rows: Integers) -> Iterator[bytes]:
        for row in rows.tolist():
            yield from map(os.fsencode, self._decoder.compiled_paths(row))


class _RawJob(_CompiledJob):
    """Images whose files hold their pixels as they are wanted."""

    def _read(
        self, images: range, offsets: Integers, target: ArrayWriter | MemoryWriter
    ) -> int:
        some = slice(images.start, images.stop)
        rows = self._rows[some]
        return self._reader.read(
            self._encoded_paths(rows),
            self._decoder.raw_places(rows),
            self._sizes_bytes[some],
            offsets,
            target,
        )


class _PiecesJob(_CompiledJob):
    """Images that are put together from pieces."""

    def _read(
        self, images: range, offsets: Integers, target: ArrayWriter | MemoryWriter
    ) -> int:
        rows = self._rows[images.start : images.stop]
        views, written = [], None
        if self._in_place is None and isinstance(target, MemoryWriter):
            written = target.file.fileno()
            targets = (offsets + target.start_bytes).tolist()
        else:
            # Kept until all is read: the memory of some is mapped for as long as there are views of it.
            views = [
                target.view(offset, *self._kind(at))
                for offset, at in zip(offsets.tolist(), images, strict=True)
            ]
            targets = [int(view.__array_interface__["data"][0]) for view in views]
        num_read = self._read_pieces(
            self._encoded_paths(rows),
            map(self._decoder.compiled_numbers, rows.tolist()),
            map(self._decoder.numbers, rows.tolist()),
            targets,
            written,
        )
        del views
        return num_read

    @property
    @abstractmethod
    def _read_pieces(self) -> ReadPieces:
        """What reads them."""


class _SegmentJob(_PiecesJob):
    """Images in strips or tiles that need no more than zlib."""

    @property
    def _read_pieces(self) -> ReadPieces:
        return self._reader.read_segments


class _ChunkJob(_PiecesJob):
    """Zarr arrays in chunks and shards."""

    @property
    def _read_pieces(self) -> ReadPieces:
        return self._reader.read_chunks
