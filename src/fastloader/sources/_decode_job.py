"""Images of a source decoded into memory by all cores."""

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.shm import ArrayWriter, MemoryWriter
from fastloader.sources._job_processes import BUFFERS_PER_CHILD
from fastloader.sources._jobs import run_job
from fastloader.sources._opened_here import state_without
from fastloader.sources._protocol import ImageTable, WritePixels
from fastloader.sources._raw_pixels import RawReader, raw_reader

__all__ = ["REQUESTS_AT_ONCE", "ImageDecoder", "decode_images"]

Integers: TypeAlias = npt.NDArray[np.int64]

REQUESTS_AT_ONCE = 16
"""Images at URLs to read at once: nearly all of the time is waiting for the network."""
_REQUESTED_BYTES = 256 << 20
"""Most pixels of images at URLs that are read at once, where one image is less."""
_LARGE_IMAGE_BYTES = 4 << 20
_LARGE_PIECE_BYTES = 256 << 10
"""From images and from strips, tiles and chunks of these sizes on, decoding takes so much longer
than the Python around it that threads keep cores busy, which cost no start. Below, they are as slow
as one thread: each asks for the interpreter's lock after every piece, and sleeps until the other
gives it away. Two threads took 1,040 ms to 830 and 395 to 400 (strips of 8 kB, chunks of 128), and
360 to 195 with strips of a megabyte."""
_LARGEST_OF_CHILDREN_BYTES = 32 << 20
"""Of which each child has three in its buffers."""
_CHILD_BYTES = 24 << 20
_CHILDREN_SHARE = 4
"""Beside its buffers a child process takes 24 MB: there are as few as keep all that below a quarter
of the pixels."""
_SCRATCH_SHARE = 16
"""For a memory file, images are decoded into memory that is used again and written from there,
which takes 0.8 to 0.9 of the time that decoding into fresh shared pages takes: each of those is a
page fault. Where that memory of all cores were more than a sixteenth of all pixels, they are
decoded in place. So they are in memory of this process, which may be in huge pages."""
_PART_BYTES = 4 << 20
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

    def is_stored_raw(self, rows: Integers) -> npt.NDArray[np.bool_]:
        """Tell of which images all pixels lie in the file in one piece and as they are wanted."""
        ...

    def raw_places(self, rows: Integers) -> Integers:
        """Return stamps of the files of such images, and where the pixels in them begin."""
        ...


def decode_images(
    decoder: ImageDecoder,
    rows: Integers,
    offsets: Integers,
    write: WritePixels,
    *,
    channels: Sequence[int] | None,
    on_rows: Callable[[int], None] | None,
    num_cores: int,
    is_local: bool,
) -> None:
    """Decode images to their places in memory; arguments as for `ImageSource.read_images`.

    Args:
        decoder: Decodes each; picklable.
        rows: Row numbers.
        offsets: Position of each image's first byte.
        write: Puts pixels there.
        channels: Channels to keep; all if None.
        on_rows: Called with the number of images written since the last call.
        num_cores: Images to decode at once.
        is_local: Whether they are on this machine, not behind a network.
    """
    if not len(rows):
        return
    table = decoder.read_table()
    shapes = table.shapes[rows]
    if channels is not None:
        shapes[:, 1] = len(channels)
    sizes = shapes.prod(axis=1) * table.item_sizes[rows]
    reader = raw_reader() if is_local and channels is None else None
    if reader is not None and isinstance(write, ArrayWriter | MemoryWriter):
        is_raw = decoder.is_stored_raw(rows)
        if is_raw.any():
            images = (rows[is_raw], offsets[is_raw], shapes[is_raw], sizes[is_raw])
            raw_job = _RawJob(reader, decoder, *images, write, num_cores)
            _run(raw_job, on_rows, num_cores, in_processes=False)
        rows, offsets, shapes, sizes = (
            every[~is_raw] for every in (rows, offsets, shapes, sizes)
        )
        if not len(rows):
            return
    for_children = np.zeros(len(rows), np.bool_)
    if not is_local:
        at_once = min(REQUESTS_AT_ONCE, _REQUESTED_BYTES // max(1, int(sizes.max())))
        kinds = [(~for_children, max(num_cores, at_once))]
    else:
        is_large = sizes >= _LARGE_IMAGE_BYTES
        has_small_pieces = decoder.piece_bytes(rows) < _LARGE_PIECE_BYTES
        is_choppy = is_large & has_small_pieces & (sizes < _LARGEST_OF_CHILDREN_BYTES)
        if not _most_children(sizes[is_choppy | ~is_large]):
            is_choppy[:] = False
        for_children = is_choppy | ~is_large
        most = 1 + max(1, _most_children(sizes[for_children]))
        kinds = [(for_children, min(num_cores, most)), (~for_children, num_cores)]
    for chosen, cores in kinds:
        if chosen.any():
            images = (rows[chosen], offsets[chosen], shapes[chosen], sizes[chosen])
            job = _DecodeJob(decoder, *images, write, channels, cores)
            _run(job, on_rows, cores, in_processes=chosen is for_children)


def _most_children(sizes_bytes: Integers) -> int:
    """Return how many children take little memory beside these images, 0 if none does."""
    buffer_bytes = max(_PART_BYTES, int(sizes_bytes.max(initial=0)))
    child_bytes = _CHILD_BYTES + BUFFERS_PER_CHILD * buffer_bytes
    return int(sizes_bytes.sum()) // (_CHILDREN_SHARE * child_bytes)


def _run(
    job: "_DecodeJob",
    on_rows: Callable[[int], None] | None,
    num_cores: int,
    *,
    in_processes: bool,
) -> None:
    def take_result(part: int, _: Any) -> None:
        if on_rows is not None:
            on_rows(job.num_images(part))

    run_job(job, take_result, num_cores=num_cores, in_processes=in_processes)


class _DecodeJob:
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
            isinstance(write, MemoryWriter) and takes_too_much
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
        return len(self._starts) - 1

    @property
    def buffer_bytes(self) -> int:
        lasts = self._starts[1:] - 1
        ends = self._places[lasts] + self._sizes_bytes[lasts]
        return int((ends - self._places[self._starts[:-1]]).max())

    def num_images(self, part: int) -> int:
        return int(self._starts[part + 1] - self._starts[part])

    def describe(self, part: int) -> str:
        first, last = int(self._starts[part]), int(self._starts[part + 1]) - 1
        paths = [self._decoder.file_path(int(self._rows[at])) for at in (first, last)]
        return f"{paths[0]} to {paths[1]}"

    def run(self, part: int) -> None:
        for at in self._images_of(part):
            self._decode(at)

    def _decode(self, at: int) -> None:
        offset = int(self._offsets[at])
        shape, dtype = self._kind(at)
        if self._in_place is not None:
            out = self._in_place.view(offset, shape, dtype)
            self._decoder.decode(int(self._rows[at]), out, self._channels)
        else:
            out = self._scratch_array(shape, dtype)
            self._decoder.decode(int(self._rows[at]), out, self._channels)
            self._write(offset, out)

    def make(self, part: int, buffer: npt.NDArray[np.uint8]) -> None:
        first = self._places[self._starts[part]]
        for at in self._images_of(part):
            shape, dtype = self._kind(at)
            out = np.ndarray(shape, dtype, buffer, int(self._places[at] - first))
            self._decoder.decode(int(self._rows[at]), out, self._channels)

    def take(self, part: int, buffer: npt.NDArray[np.uint8]) -> None:
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


class _RawJob(_DecodeJob):
    """Images whose files hold their pixels as they are wanted, read many at once."""

    def __init__(
        self,
        reader: RawReader,
        decoder: ImageDecoder,
        rows: Integers,
        offsets: Integers,
        shapes: Integers,
        sizes_bytes: Integers,
        write: ArrayWriter | MemoryWriter,
        num_cores: int,
    ) -> None:
        super().__init__(decoder, rows, offsets, shapes, sizes_bytes, write, None, num_cores)
        self._reader = reader
        self._target = write

    def run(self, part: int) -> None:
        images = self._images_of(part)
        at = images.start
        while at < images.stop:
            some = slice(at, images.stop)
            rows = self._rows[some]
            at += self._reader.read(
                (os.fsencode(self._decoder.file_path(row)) for row in rows.tolist()),
                self._decoder.raw_places(rows),
                self._sizes_bytes[some],
                self._offsets[some],
                self._target,
            )
            if at < images.stop:
                self._decode(at)  # knows what is wrong with it
                at += 1


def _part_starts(sizes_bytes: Integers, num_cores: int) -> Integers:
    """Return the first image of each part, and last the number of images."""
    most = min(_MAX_PARTS, num_cores * _PARTS_PER_CORE) if num_cores > 1 else 1
    target = max(1, min(_PART_BYTES, int(sizes_bytes.sum()) // most))
    ends = np.cumsum(sizes_bytes)
    part_of = (ends - sizes_bytes) // max(target, -(-int(ends[-1]) // _MAX_PARTS))
    firsts = np.flatnonzero(np.diff(part_of, prepend=-1))
    return np.append(firsts, len(sizes_bytes))
