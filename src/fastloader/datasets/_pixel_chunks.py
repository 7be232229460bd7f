"""Read a dataset in chunks and take the moments of the pixels of each."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from fastloader.datasets._batched import as_batched
from fastloader.datasets._fields import get_field
from fastloader.datasets._moments import Moments
from fastloader.datasets._pixel_reader import LARGE_BYTES, PixelReader, as_pixels, merged
from fastloader.errors import StatisticsError
from fastloader.streams._nexts import nexts
from fastloader.tensors._buffers import BufferPool, allocating_with

__all__ = ["Parts", "PixelChunks", "choose_indices", "parts_of_map", "parts_of_stream"]

Parts: TypeAlias = tuple[int | None, int | None, Iterable[Moments]]
"""Axis of the channels, number of parts if known, and the parts."""

_FindReader: TypeAlias = Callable[[Any], PixelReader]
_Loader: TypeAlias = Callable[..., Iterable[Any]]

# What is read at once: large enough to be gathered by several threads, small enough to be still
# in or near the CPU's cache when it is summed.
_CHUNK_BYTES = 1 << 23
_STREAM_SAMPLES = 64  # of an iterable dataset, looked at together


class PixelChunks(Dataset[Moments]):
    """The moments of a dataset, a chunk of samples at a time; what a loader can work through.

    Args:
        dataset: Map-style dataset; read in batches if it can be and images are small.
        indices: Which samples.
        reader: How to read one.
        sample_bytes: About how large the image of a sample is.
    """

    def __init__(
        self, dataset: Any, indices: Sequence[int], reader: PixelReader, sample_bytes: int
    ) -> None:
        self._dataset = dataset
        self._batched = as_batched(dataset) if sample_bytes < LARGE_BYTES else None
        self._in_memory = _arrays_of(dataset)
        self._pool = BufferPool()
        self._indices = indices
        self._reader = reader
        self.num_samples = max(1, _CHUNK_BYTES // max(1, sample_bytes))
        """Number of samples of a chunk."""

    def __len__(self) -> int:
        return math.ceil(len(self._indices) / self.num_samples)

    def __getitem__(self, chunk: int) -> Moments:
        start = chunk * self.num_samples
        indices = [int(index) for index in self._indices[start : start + self.num_samples]]
        if not indices:
            raise IndexError(chunk)
        if self._in_memory is not None and _is_run(indices):
            rows = slice(indices[0], indices[-1] + 1)
            views = [array[rows] for array in self._in_memory]
            is_bare = not isinstance(self._dataset, TensorDataset)
            return self._reader.of_batch(views[0] if is_bare else views, indices)
        if self._batched is not None:
            with allocating_with(self._pool):
                batch = self._batched.get_batch(indices)
            return self._reader.of_batch(batch, indices)
        return reduce(merged, self._reader.of_samples(self._samples(indices), indices))

    def _samples(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return samples read one by one, unless the dataset reads several at a time."""
        dataset = self._dataset
        read = getattr(type(dataset), "__getitems__", None)
        return [dataset[index] for index in indices] if read is None else read(dataset, indices)


def _arrays_of(dataset: Any) -> Sequence[Any] | None:
    """Return the arrays that a dataset is views of, all with an axis of samples first."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    return [dataset] if type(dataset) in {torch.Tensor, np.ndarray} else None


def _is_run(indices: Sequence[int]) -> bool:
    """Return whether indices count up by one, from 0 or more."""
    return indices[0] >= 0 and indices == list(range(indices[0], indices[0] + len(indices)))


def choose_indices(
    size: int, indices: Sequence[int] | None, sample_size: int | None, seed: int
) -> Sequence[int]:
    """Return which samples to take statistics of.

    Args:
        size: Length of the dataset.
        indices: Only these; None: all.
        sample_size: Only so many of them, drawn without repeats; None: all.
        seed: Of that draw.

    Raises:
        StatisticsError: If there are none, or indices that are not of the dataset.
    """
    chosen = range(size) if indices is None else indices
    if indices is not None:
        _check_indices(indices, size)
    if sample_size is not None and sample_size < len(chosen):
        generator = np.random.default_rng(seed)
        drawn = generator.choice(len(chosen), max(sample_size, 0), replace=False)
        drawn.sort()  # read in order, which storage likes
        chosen = [chosen[int(position)] for position in drawn]
    if len(chosen) == 0:
        raise StatisticsError("There are no samples to take statistics of.")
    return chosen


def _check_indices(indices: Sequence[int], size: int) -> None:
    """Check indices before anything is read: a slice of an array would come out short.

    Raises:
        StatisticsError: If they are no whole numbers, or lie outside of the dataset.
    """
    numbers = np.asarray(indices)
    if numbers.size == 0:
        return  # said by the caller
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise StatisticsError(
            "indices must be whole numbers in one row, but got dtype "
            f"{numbers.dtype} and shape {numbers.shape}: of a mask take np.flatnonzero."
        )
    low, high = int(numbers.min()), int(numbers.max())
    if low < -size or high >= size:
        raise StatisticsError(
            f"indices go from {low} to {high}, but the dataset has {size} samples."
        )


def parts_of_map(
    dataset: Any, indices: Sequence[int], find_reader: _FindReader, loader: _Loader | None
) -> Parts:
    """Return what a map-style dataset is read in.

    Args:
        dataset: Map-style dataset.
        indices: Which samples.
        find_reader: Returns the reader of samples like one.
        loader: What to read with; see `ChannelStatistics.of`.
    """
    sample = dataset[int(indices[0])]
    reader = find_reader(sample)
    image_bytes = as_pixels(get_field(sample, reader.path)).nbytes
    chunks = PixelChunks(dataset, indices, reader, image_bytes)
    parts = (
        (chunks[number] for number in range(len(chunks)))
        if loader is None
        else loader(chunks, batch_size=None)
    )
    return reader.channel_axis, len(chunks), parts


def parts_of_stream(dataset: Any, find_reader: _FindReader) -> Parts:
    """Return what an iterable dataset is read in.

    Args:
        dataset: Iterable dataset.
        find_reader: Returns the reader of samples like one.

    Raises:
        StatisticsError: If there are no samples.
    """
    samples = nexts(iter(dataset))
    start = list(islice(samples, _STREAM_SAMPLES))
    if not start:
        raise StatisticsError("There are no samples to take statistics of.")
    reader = find_reader(start[0])

    def parts() -> Iterator[Moments]:
        chunk, first = start, 0
        while chunk:
            yield from reader.of_samples(chunk, range(first, first + len(chunk)))
            first += len(chunk)
            chunk = list(islice(samples, _STREAM_SAMPLES))

    return reader.channel_axis, None, parts()
