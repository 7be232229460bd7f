"""Images of a source decoded into memory by all cores."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.sources._compiled_job import read_compiled
from fastloader.sources._decode_job import (
    PART_BYTES,
    DecodeJob,
    ImageDecoder,
    run_decode_job,
)
from fastloader.sources._job_processes import BUFFERS_PER_CHILD
from fastloader.sources._protocol import WritePixels

__all__ = ["REQUESTS_AT_ONCE", "decode_images"]

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
    sizes = shapes.prod(axis=1) * table.item_sizes_of(rows)
    if is_local and channels is None:
        images = (rows, offsets, shapes, sizes)
        is_left = ~read_compiled(decoder, *images, write, on_rows, num_cores)
        rows, offsets, shapes, sizes = (every[is_left] for every in images)
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
            job = DecodeJob(decoder, *images, write, channels, cores)
            run_decode_job(job, on_rows, cores, in_processes=chosen is for_children)


def _most_children(sizes_bytes: Integers) -> int:
    """Return how many children take little memory beside these images, 0 if none does."""
    buffer_bytes = max(PART_BYTES, int(sizes_bytes.max(initial=0)))
    child_bytes = _CHILD_BYTES + BUFFERS_PER_CHILD * buffer_bytes
    return int(sizes_bytes.sum()) // (_CHILDREN_SHARE * child_bytes)
