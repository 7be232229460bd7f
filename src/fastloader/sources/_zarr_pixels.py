"""Reads a box of a Zarr array into memory that is given."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.errors import FastLoaderError, ImageDataError, SourceError
from fastloader.sources._file_tree import FileTree, OpenFile
from fastloader.sources._zarr_array import ZarrArray, ZarrChunks, ZarrShards
from fastloader.sources._zarr_codecs import decompress, strip_checksum

__all__ = ["read_box"]

Place: TypeAlias = tuple[int, ...]

_NOT_STORED = (1 << 64) - 1  # in a shard's index
_PAIR_BYTES = 16
_ONE_AT_A_TIME = {
    "async.concurrency": 1,
    "threading.max_workers": 1,
    # Its own pipeline: that of zarrs hangs in forked workers, which lack its threads.
    "codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline",
}
"""For the zarr package: other cores read other images."""


def read_box(
    tree: FileTree, folder: str, array: ZarrArray, start: Sequence[int], out: npt.NDArray[Any]
) -> None:
    """Read a part of an array; chunks that are not there are of the fill value.

    Args:
        tree: What it is in.
        folder: Path of the array there.
        array: What its metadata say.
        start: First element on each axis.
        out: Written to, of the array's dtype and as many axes, all inside it.

    Raises:
        SourceError: If a chunk cannot be read.
        ImageDataError: If one cannot be decoded.
    """
    if array.chunks is None:
        _read_by_zarr(tree, folder, array, start, out)
        return
    read_file = _read_chunk if array.shards is None else _read_shard

    def read_tile(tile: tuple[Place, Place]) -> None:
        index, origin = tile
        path = f"{folder}/{_key(array, index)}"
        with _naming(tree.path(path)):
            read_file(tree, path, array, origin, start, out)

    for _ in tree.each(read_tile, _tiles(array.file_shape, start, out.shape)):
        pass


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say which file it is that cannot be decoded.

    Raises:
        FastLoaderError: If what runs inside raises it.
        SourceError: If it cannot be opened or read.
        ImageDataError: If anything else goes wrong.
    """
    try:
        yield
    except FastLoaderError:
        raise
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error}).") from error
    except Exception as error:  # damage shows as any error that codecs can raise
        raise ImageDataError(
            f"{path} cannot be decoded ({type(error).__name__}: {str(error)[:200]}): it is "
            f"damaged, or was written with other metadata."
        ) from error


def _key(array: ZarrArray, index: Place) -> str:
    return array.key_start + array.separator.join(map(str, index))


def _tiles(
    tile: Sequence[int], start: Sequence[int], shape: Sequence[int]
) -> Iterator[tuple[Place, Place]]:
    """Yield number and first element of each tile of a grid that a box touches."""
    ranges = [
        range(first // size, -(-(first + length) // size))
        for size, first, length in zip(tile, start, shape, strict=True)
    ]
    for index in itertools.product(*ranges):
        yield index, tuple(n * size for n, size in zip(index, tile, strict=True))


def _overlap(
    origin: Sequence[int], tile: Sequence[int], start: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return what a tile and a box have in common: as a part of the tile, and of the box."""
    in_tile, in_box = [], []
    for at, size, first, length in zip(origin, tile, start, shape, strict=True):
        low, high = max(at, first), min(at + size, first + length)
        in_tile.append(slice(low - at, high - at))
        in_box.append(slice(low - first, high - first))
    return tuple(in_tile), tuple(in_box)


def _read_chunk(
    tree: FileTree,
    path: str,
    array: ZarrArray,
    origin: Place,
    start: Sequence[int],
    out: npt.NDArray[Any],
) -> None:
    chunks = array.chunks
    assert chunks is not None  # noqa: S101 - the caller has looked
    in_chunk, in_box = _overlap(origin, chunks.shape, start, out.shape)
    target = out[in_box]
    try:
        content = memoryview(tree.read(path))
    except FileNotFoundError:
        target[...] = array.fill_value
        return
    _decode(content, chunks, in_chunk, target)


def _read_shard(
    tree: FileTree,
    path: str,
    array: ZarrArray,
    origin: Place,
    start: Sequence[int],
    out: npt.NDArray[Any],
) -> None:
    chunks, shards = array.chunks, array.shards
    assert chunks is not None  # noqa: S101 - the caller has looked
    assert shards is not None  # noqa: S101
    _, in_box = _overlap(origin, shards.shape, start, out.shape)
    box = out[in_box]
    box_start = tuple(
        max(at, first) - at for at, first in zip(origin, start, strict=True)
    )  # in the shard
    try:
        with tree.opened(path) as file:
            size_bytes = file.stamp()[0]
            places = _read_index(file, size_bytes, chunks, shards)
            stored: list[tuple[int, int]] = []
            targets = []
            for index, chunk_origin in _tiles(chunks.shape, box_start, box.shape):
                in_chunk, in_target = _overlap(chunk_origin, chunks.shape, box_start, box.shape)
                offset, length = places[index].tolist()
                if offset == length == _NOT_STORED:
                    box[in_target] = array.fill_value
                    continue
                if offset + length > size_bytes:
                    raise ValueError(f"chunk {index} is said to be outside of the file")
                stored.append((offset, length))
                targets.append((in_chunk, box[in_target]))
            for content, (in_chunk, target) in zip(
                file.read_each(stored), targets, strict=True
            ):
                _decode(memoryview(content), chunks, in_chunk, target)
    except FileNotFoundError:
        box[...] = array.fill_value


def _read_index(
    file: OpenFile, size_bytes: int, chunks: ZarrChunks, shards: ZarrShards
) -> npt.NDArray[np.uint64]:
    """Return position and length of each chunk of a shard, shape ``(*counts, 2)``.

    Raises:
        ValueError: If the file is too short.
    """
    counts = [a // b for a, b in zip(shards.shape, chunks.shape, strict=True)]
    num_bytes = math.prod(counts) * _PAIR_BYTES
    stored_bytes = num_bytes + (4 if shards.has_index_checksum else 0)
    if stored_bytes > size_bytes:
        raise ValueError(f"the file of {size_bytes} bytes has no room for its index")
    offset = 0 if shards.is_index_first else size_bytes - stored_bytes
    content = memoryview(file.read(offset, stored_bytes))
    if shards.has_index_checksum:
        content = strip_checksum(content)
    return np.frombuffer(content, "<u8").reshape(*counts, 2)


def _decode(
    content: memoryview, chunks: ZarrChunks, inside: tuple[slice, ...], target: npt.NDArray[Any]
) -> None:
    """Decode a chunk and put a part of it where it belongs, without a copy where it can be."""
    if chunks.has_checksum:
        content = strip_checksum(content)
    is_whole = (
        target.shape == chunks.shape
        and target.flags.c_contiguous
        and chunks.permutation is None
        and chunks.dtype == target.dtype
        and target.dtype.kind != "b"
    )
    if is_whole:
        decompress(chunks.compressor, content, target.reshape(-1).view(np.uint8))
        return
    order = chunks.permutation or tuple(range(len(chunks.shape)))
    stored = np.empty([chunks.shape[axis] for axis in order], chunks.dtype)
    raw = stored.reshape(-1).view(np.uint8)
    decompress(chunks.compressor, content, raw)
    if chunks.dtype.kind == "b":
        np.not_equal(raw, 0, out=raw.view(np.bool_))  # other bytes are no valid booleans
    target[...] = stored.transpose(np.argsort(order))[inside]


def _read_by_zarr(
    tree: FileTree, folder: str, array: ZarrArray, start: Sequence[int], out: npt.NDArray[Any]
) -> None:
    """Let the zarr package read what needs codecs that are not known here."""
    # Starts a thread when it reads, and runs the code of numcodecs that registers all codecs: most
    # arrays and the children that decode them do without both.
    import zarr  # noqa: PLC0415
    from numcodecs import get_codec  # noqa: F401, PLC0415

    box = tuple(slice(a, a + n) for a, n in zip(start, out.shape, strict=True))
    with _naming(tree.path(folder)), zarr.config.set(_ONE_AT_A_TIME):
        found = zarr.open_array(
            **tree.as_zarr_store(folder),
            mode="r",
            zarr_format=3 if array.zarr_format == 3 else 2,
        )
        out[...] = found[box]
