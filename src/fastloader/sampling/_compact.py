"""Torch's own samplers in the same order, without a Python list of the whole permutation."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import chain, islice, takewhile
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastloader._torch_internals import draws_on_cpu_by_default
from fastloader.inspection._lengths import length_of
from fastloader.sampling._epoch_sampler import has_chunks
from fastloader.sampling._permutations import Permutations, counts_drawn
from fastloader.streams._nexts import nexts

__all__ = ["CutBatches", "IndexArray", "IndexList", "compact_sampler"]

_CHUNK = 8192
"""Indices turned into Python numbers at a time."""

_TORCH_SAMPLERS = (DistributedSampler, SubsetRandomSampler, WeightedRandomSampler)


def compact_sampler(
    sampler: Iterable[Any],
    *,
    num_skipped: int = 0,
    permutations: Permutations | None = None,
) -> Iterable[Any]:
    """Return an iterable of the same indices that needs less memory, or `sampler` itself.

    Torch's `RandomSampler` makes a list of all indices, some 40 bytes each; this keeps 8. Only
    samplers whose exact type is known are replaced. Each pass draws from the generator, or
    from torch's global one, what the original would draw, at the same moments.

    Args:
        sampler: Sampler or batch sampler.
        num_skipped: Leave out so many at the start: samples of torch's `BatchSampler`, whose
            batches are then cut from the rest, else items of `sampler`.
        permutations: Draws those of `RandomSampler`, when they are needed by default.
    """
    kind = type(sampler)
    permutations = permutations or Permutations()
    if kind is BatchSampler:
        return _CompactBatches(sampler, num_skipped, permutations)
    compact = sampler
    if kind is RandomSampler:
        compact = _CompactRandom(sampler, permutations)
    elif kind in _TORCH_SAMPLERS and not draws_on_cpu_by_default():
        compact = _OnCPU(sampler)
    return _Later(compact, num_skipped) if num_skipped else compact


_Indices: TypeAlias = npt.NDArray[np.int64]
_Batch = TypeVar("_Batch", bound=Sized)


class IndexList(list[int]):
    """Indices of a batch as a list, as samplers give them, and as the array it was made of.

    Reading whole batches needs the array; making one of a list takes as long as reading a
    small batch.

    Args:
        array: int64, shape ``(N,)``, no number below 0; not to be written to.
    """

    def __init__(self, array: _Indices) -> None:
        super().__init__(array.tolist())
        self.array = array

    def __reduce__(self) -> tuple[type[list[int]], tuple[list[int]]]:
        return list, (list(self),)


class IndexArray(Sequence[int]):
    """Indices of many samples as an array that can be read like a list of numbers.

    Equal to such a list.

    Args:
        array: int64, shape ``(N,)``, no number below 0; not to be written to.
    """

    def __init__(self, array: _Indices) -> None:
        self.array = array

    def part(self, start: int, stop: int) -> "IndexArray":
        """Return some that follow one another.

        Args:
            start: Place of the first.
            stop: Place after the last.
        """
        return IndexArray(self.array[start:stop])

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, position: Any) -> Any:
        return self.array[position].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, IndexArray) else other)

    __hash__ = None  # type: ignore[assignment]  # like a list's

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array, dtype, copy=bool(copy) or None)


class _Compact:
    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)


class _CompactRandom(_Compact):
    """The order of `RandomSampler`."""

    def __init__(self, sampler: Any, permutations: Permutations) -> None:
        super().__init__(sampler)
        self._permutations = permutations

    def __iter__(self) -> Iterator[int]:
        pieces = (
            chunk[start : start + _CHUNK]
            for chunk in self.chunks()
            for start in range(0, len(chunk), _CHUNK)
        )
        return chain.from_iterable(piece.tolist() for piece in pieces)

    def chunks(self) -> Iterator[_Indices]:
        sampler: RandomSampler = self._sampler
        generator = sampler.generator
        if generator is None:
            # On the CPU whatever torch's default device is, like all of this.
            seed = torch.empty((), dtype=torch.int64, device="cpu").random_().item()
            generator = torch.Generator().manual_seed(int(seed))
        length = len(sampler.data_source)
        if sampler.replacement:
            yield from _draw_with_replacement(length, sampler.num_samples, generator)
            return
        for stop in counts_drawn(sampler):
            indices = self._permutations.draw(length, generator)
            if stop:
                yield indices[:stop].cpu().numpy()
        self._permutations.note_end(sampler)


def _draw_with_replacement(
    high: int, num_samples: int, generator: torch.Generator
) -> Iterator[_Indices]:
    for _ in range(num_samples // 32):  # torch's own size: another one draws other numbers
        yield _draw_integers(high, 32, generator)
    yield _draw_integers(high, num_samples % 32, generator)


def _draw_integers(high: int, size: int, generator: torch.Generator) -> _Indices:
    indices = torch.randint(
        high, (size,), dtype=torch.int64, generator=generator, device=generator.device
    )
    return indices.cpu().numpy()


def _count(first: int, length: int) -> Iterator[_Indices]:
    for start in range(first, length, _CHUNK):
        yield np.arange(start, min(start + _CHUNK, length))


def _without_first(chunks: Iterator[_Indices], count: int) -> Iterator[_Indices]:
    for chunk in chunks:
        yield chunk[count:]
        count = max(0, count - len(chunk))


class _CompactBatches(_Compact):
    """The batches of `BatchSampler`, over a compact sampler."""

    def __init__(self, sampler: Any, num_skipped: int, permutations: Permutations) -> None:
        super().__init__(sampler)
        self._num_skipped = num_skipped
        self._permutations = permutations

    def __iter__(self) -> Iterator[Sequence[Any]]:
        inner, size = self._sampler.sampler, self._sampler.batch_size
        if type(inner) is SequentialSampler:
            return self._cut(_count(self._num_skipped, length_of(inner.data_source)))
        if type(inner) is RandomSampler:
            chunks = _CompactRandom(inner, self._permutations).chunks()
            return self._cut(_without_first(chunks, self._num_skipped))
        if has_chunks(inner):  # asked now: the epoch of an order may change before it is read
            return self._cut(inner.chunks(self._num_skipped))
        later = compact_sampler(inner, num_skipped=self._num_skipped)
        return self._complete(_collect(later, size))

    def _cut(self, chunks: Iterator[_Indices]) -> "CutBatches":
        size = self._sampler.batch_size
        batches = self._complete(_cut(chunks, size))
        return CutBatches(chunks, batches, size, drops_last=self._sampler.drop_last)

    def _complete(self, batches: Iterator[_Batch]) -> Iterator[_Batch]:
        """Leave out a last batch that is not full, if it is to be."""
        batch_sampler: BatchSampler = self._sampler
        if not batch_sampler.drop_last:
            return batches
        size = batch_sampler.batch_size
        return takewhile(lambda batch: len(batch) == size, batches)


class CutBatches(Iterator[Sequence[Any]]):
    """Batches that are cut from arrays, which can be had uncut as well; not both of one pass.

    Args:
        chunks: The arrays, drawn no sooner than they are needed.
        batches: Cut from them, as arrays.
        batch_size: Indices in each but the last.
        drops_last: Whether a last batch that is not full is left out.
    """

    def __init__(
        self,
        chunks: Iterator[_Indices],
        batches: Iterator[_Indices],
        batch_size: int,
        *,
        drops_last: bool,
    ) -> None:
        self._chunks = chunks
        self.next_array = batches.__next__
        """Returns the next batch as it was cut."""
        self.batch_size = batch_size
        self._drops_last = drops_last
        self._rest = np.empty(0, dtype=np.int64)

    def __next__(self) -> IndexArray:
        return IndexArray(self.next_array())

    def take_uncut(self, most: int) -> _Indices:
        """Return the indices of the next batches, one after the other; none at the end.

        Args:
            most: How many there may be; of one batch at least.
        """
        wanted = max(1, most // self.batch_size) * self.batch_size
        parts = [self._rest] if len(self._rest) else []
        count = len(self._rest)
        while count < wanted and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            count += len(chunk)
        joined = np.concatenate(parts) if len(parts) > 1 else (parts or [self._rest])[0]
        stop = min(wanted, count)
        if self._drops_last:
            stop -= stop % self.batch_size
        self._rest = joined[stop:]
        return joined[:stop]


def _collect(sampler: Iterable[Any], size: int) -> Iterator[list[Any]]:
    indices = nexts(iter(sampler))
    while batch := list(islice(indices, size)):
        yield batch


def _cut(chunks: Iterator[_Indices], size: int) -> Iterator[_Indices]:
    """Cut a stream of arrays into batches, asking for a chunk no sooner than it is needed."""
    chunk = np.empty(0, dtype=np.int64)
    while True:
        if num_whole := len(chunk) // size:
            yield from chunk[: num_whole * size].reshape(num_whole, size)
            chunk = chunk[num_whole * size :]
        parts, missing = [], size
        while missing:
            if not len(chunk):
                fresh = next(chunks, None)
                if fresh is None:
                    break
                chunk = fresh
            parts.append(chunk[:missing])
            chunk = chunk[missing:]
            missing -= len(parts[-1])
        if missing < size:
            yield parts[0] if len(parts) == 1 else np.concatenate(parts)
        if missing:
            return


class _Later(_Compact):
    """Another sampler, without its first items."""

    def __init__(self, sampler: Any, num_skipped: int) -> None:
        super().__init__(sampler)
        self._num_skipped = num_skipped

    def __iter__(self) -> Iterator[Any]:
        if has_chunks(self._sampler):
            chunks = self._sampler.chunks(self._num_skipped)
            return chain.from_iterable(chunk.tolist() for chunk in chunks)
        return islice(nexts(iter(self._sampler)), self._num_skipped, None)


class _OnCPU(_Compact):
    """Another sampler of torch's, kept from drawing on torch's default device."""

    def __iter__(self) -> Iterator[Any]:
        generator = getattr(self._sampler, "generator", None)
        device = torch.device("cpu") if generator is None else generator.device
        with device:
            indices = iter(self._sampler)
        while True:
            with device:
                index = next(indices, self)
            if index is self:
                return
            yield index
