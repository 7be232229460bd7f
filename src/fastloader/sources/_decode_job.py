"""Images of a source as a job that falls into parts."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.shm import ArrayWriter, MemoryWriter
from fastloader.sources._jobs import run_job
from fastloader.sources._opened_here import state_without
from fastloader.sources._protocol import ImageTable, WritePixels

__all__ = ["PART_BYTES", "DecodeJob", "ImageDecoder", "run_decode_job"]

Integers: TypeAlias = npt.NDArray[np.int64]

_SCRATCH_SHARE = 16
"""For a memory file, images are decoded into memory that is used again and written from there,
which takes 0.8 to 0.9 of the time that decoding into fresh shared pages takes: each of those is a
page fault. Where that memory of all cores were more than a sixteenth of all pixels, they are
decoded in place, unless a file may find its disk full. So they are in memory of this process, which may be in huge pages."""
PART_BYTES = 4 << 20
"""Stays in the cache of processors, from which the parent of a child takes it."""
_ALIGNMENT_BYTES = 16
_MAX_PARTS = 8192
_PARTS_PER_CORE = 32


class ImageDecoder(Protocol):
    """What decodes one image."""

    def read_table(self) -> ImageTable:
        """Return sizes and pixel types of all images."""
        ...

    def decode(self, row: int, out: npt.NDArray[Any], channels: Sequence[int] | None) -> None:
        """Decode one image into an array; see `ImageFolder.decode`."""
        ...

    def piece_bytes(self, rows: Integers) -> Integers:
        """Return how many bytes of pixels of each image are decoded at a time."""
        ...

    def file_path(self, row: int) -> str:
        """Return the path of an image."""
        ...

    def compiled_ways(self, rows: Integers) -> Integers:
        """Return by which way of `CompiledWay` each image is read in C."""
        ...

    def raw_places(self, rows: Integers) -> Integers:
        """Return stamps of the files of raw images, and where the pixels in them begin."""
        ...

    def compiled_numbers(self, row: int) -> Sequence[int]:
        """Return what the layout of an image is in C, see `CompiledKind`."""
        ...

    def compiled_paths(self, row: int) -> Sequence[str]:
        """Return the paths by which C finds an image."""
        ...

    def numbers(self, row: int) -> Integers:
        """Return what is noted of an image, see `CompiledWay`."""
        ...


class DecodeJob:
    """The images of some rows, divided into parts of neighbours; see `BufferedJob`.

    **Processes:** a pickle goes without what writes, and what it arrives as can only `make`.
    """

    def __init__(
        self,
        decoder: ImageDecoder,
        rows: Integers,
        offsets: Integers,
        shapes: Integers,
        sizes_bytes: Integers,
        write: WritePixels,
        channels: Sequence[int] | None,
        num_cores: int,
    ) -> None:
        self._decoder = decoder
        self._rows = rows
        self._offsets = offsets
        self._shapes = shapes
        self._sizes_bytes = sizes_bytes
        self._write = write
        self._channels = channels
        scratch_bytes = int(sizes_bytes.max()) * num_cores
        takes_too_much = scratch_bytes * _SCRATCH_SHARE > int(sizes_bytes.sum())
        self._in_place: ArrayWriter | MemoryWriter | None = None
        if isinstance(write, ArrayWriter) or (
            isinstance(write, MemoryWriter) and write.has_room and takes_too_much
        ):
            self._in_place = write
        self._starts = _part_starts(sizes_bytes, num_cores)
        codes = decoder.read_table().dtype_codes[rows]
        is_other = np.diff(codes, append=codes[-1:]) != 0
        # In a buffer, images lie as close as their types allow.
        room = sizes_bytes + is_other * (-sizes_bytes % _ALIGNMENT_BYTES)
        self._places = np.cumsum(room) - room
        self._scratch = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return state_without(self, "_scratch", "_write", "_in_place")

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self._starts) - 1

    @property
    def buffer_bytes(self) -> int:
        """Most bytes that a part takes in a child's buffer."""
        lasts = self._starts[1:] - 1
        ends = self._places[lasts] + self._sizes_bytes[lasts]
        return int((ends - self._places[self._starts[:-1]]).max())

    def num_images(self, part: int) -> int:
        """Return how many images a part has.

        Args:
            part: Its number.
        """
        return int(self._starts[part + 1] - self._starts[part])

    def describe(self, part: int) -> str:
        """Return the paths of the first and the last image of a part.

        Args:
            part: Its number.
        """
        first, last = int(self._starts[part]), int(self._starts[part + 1]) - 1
        paths = [self._decoder.file_path(int(self._rows[at])) for at in (first, last)]
        return f"{paths[0]} to {paths[1]}"

    def run(self, part: int) -> None:
        """Decode the images of a part to where they belong.

        Args:
            part: Its number.
        """
        for at in self._images_of(part):
            self._decode(at)

    def _decode(self, at: int) -> None:
        self._decode_to(at, int(self._offsets[at]), self._in_place, self._write)

    def _decode_to(
        self,
        at: int,
        offset: int,
        in_place: ArrayWriter | MemoryWriter | None,
        write: WritePixels,
    ) -> None:
        shape, dtype = self._kind(at)
        if in_place is not None:
            out = in_place.view(offset, shape, dtype)
            self._decoder.decode(int(self._rows[at]), out, self._channels)
        else:
            out = self._scratch_array(shape, dtype)
            self._decoder.decode(int(self._rows[at]), out, self._channels)
            write(offset, out)

    def make(self, part: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Decode the images of a part into a buffer; see `BufferedJob`."""
        first = self._places[self._starts[part]]
        for at in self._images_of(part):
            shape, dtype = self._kind(at)
            out = np.ndarray(shape, dtype, buffer, int(self._places[at] - first))
            self._decoder.decode(int(self._rows[at]), out, self._channels)

    def take(self, part: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Put the images in a buffer where they belong; see `BufferedJob`."""
        images = self._images_of(part)
        place = int(self._places[images.start])
        for first, last in self._runs(images):
            start = int(self._places[first]) - place
            stop = int(self._places[last] + self._sizes_bytes[last]) - place
            pixels = buffer[start:stop].view(self._kind(first)[1])
            self._write(int(self._offsets[first]), pixels)

    def _images_of(self, part: int) -> range:
        return range(int(self._starts[part]), int(self._starts[part + 1]))

    def _runs(self, images: range) -> Iterator[tuple[int, int]]:
        """Yield the first and last of images that follow each other wherever they are."""
        here = slice(images.start, images.stop)
        offsets, ends = self._offsets[here], self._offsets[here] + self._sizes_bytes[here]
        places = self._places[here]
        codes = self._decoder.read_table().dtype_codes[self._rows[here]]
        is_next = (
            (offsets[1:] == ends[:-1])
            & (np.diff(places) == self._sizes_bytes[here][:-1])
            & (codes[1:] == codes[:-1])
        )
        edges = [0, *(np.flatnonzero(~is_next) + 1).tolist(), len(images)]
        for first, stop in pairwise(edges):
            yield images[first], images[stop - 1]

    def _kind(self, at: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        table = self._decoder.read_table()
        dtype = table.dtypes[table.dtype_codes[int(self._rows[at])]]
        return tuple(self._shapes[at].tolist()), dtype

    def _scratch_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return memory of this thread to decode into, used again for the next image."""
        num_bytes = math.prod(shape) * dtype.itemsize
        block = getattr(self._scratch, "block", None)
        if block is None or len(block) < num_bytes:
            block = self._scratch.block = np.empty(num_bytes, np.uint8)
        return np.ndarray(shape, dtype, block)


def run_decode_job(
    job: DecodeJob,
    on_rows: Callable[[int], None] | None,
    num_cores: int,
    *,
    in_processes: bool,
) -> None:
    """Decode the images of a job.

    Args:
        job: Which, and how.
        on_rows: Called with the number of images written since the last call.
        num_cores: Parts to work on at once.
        in_processes: See `fastloader.sources._jobs.run_job`.
    """

    def take_result(part: int, _: Any) -> None:
        if on_rows is not None:
            on_rows(job.num_images(part))

    run_job(job, take_result, num_cores=num_cores, in_processes=in_processes)


def _part_starts(sizes_bytes: Integers, num_cores: int) -> Integers:
    """Return the first image of each part, and last the number of images."""
    most = min(_MAX_PARTS, num_cores * _PARTS_PER_CORE) if num_cores > 1 else 1
    target = max(1, min(PART_BYTES, int(sizes_bytes.sum()) // most))
    ends = np.cumsum(sizes_bytes)
    part_of = (ends - sizes_bytes) // max(target, -(-int(ends[-1]) // _MAX_PARTS))
    firsts = np.flatnonzero(np.diff(part_of, prepend=-1))
    return np.append(firsts, len(sizes_bytes))
