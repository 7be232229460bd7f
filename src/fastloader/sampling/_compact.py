"""Torch's own samplers in the same order, without a Python list of the whole permutation."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = ["compact_sampler"]

_CHUNK = 8192
"""Indices turned into Python numbers at a time."""

_TORCH_SAMPLERS = (DistributedSampler, SubsetRandomSampler, WeightedRandomSampler)


def compact_sampler(
    sampler: Iterable[Any], generator: torch.Generator | None = None
) -> Iterable[Any]:
    """Return an iterable of the same indices that needs less memory, or `sampler` itself.

    Torch's `RandomSampler` makes a list of all indices, some 40 bytes each; this keeps 8. Only
    samplers whose exact type is known are replaced. Each pass draws from the generator, or
    from torch's global one, what the original would draw, at the same moments.

    Args:
        sampler: Sampler or batch sampler.
        generator: Draw the order from this one instead of the sampler's own.
    """
    kind = type(sampler)
    if kind is BatchSampler:
        return _CompactBatches(sampler, generator)
    if kind is RandomSampler:
        return _CompactRandom(sampler, generator)
    if kind in _TORCH_SAMPLERS and torch.get_default_device().type != "cpu":
        return _OnCPU(sampler)
    return sampler


class _Compact:
    def __init__(self, sampler: Any, generator: torch.Generator | None) -> None:
        self._sampler = sampler
        self._generator = generator

    def __len__(self) -> int:
        return len(self._sampler)


class _CompactRandom(_Compact):
    """The order of `RandomSampler`."""

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._draw())

    def _draw(self) -> Iterator[list[int]]:
        sampler: RandomSampler = self._sampler
        generator = self._generator if self._generator is not None else sampler.generator
        if generator is None:
            # On the CPU whatever torch's default device is, like all of this.
            seed = torch.empty((), dtype=torch.int64, device="cpu").random_().item()
            generator = torch.Generator().manual_seed(int(seed))
        draw = _draw_with_replacement if sampler.replacement else _draw_permutations
        yield from draw(len(sampler.data_source), sampler.num_samples, generator)


def _draw_with_replacement(
    high: int, num_samples: int, generator: torch.Generator
) -> Iterator[list[int]]:
    for _ in range(num_samples // 32):  # torch's own size: another one draws other numbers
        yield _draw_integers(high, 32, generator)
    yield _draw_integers(high, num_samples % 32, generator)


def _draw_integers(high: int, size: int, generator: torch.Generator) -> list[int]:
    indices = torch.randint(
        high, (size,), dtype=torch.int64, generator=generator, device=generator.device
    )
    return indices.tolist()


def _draw_permutations(
    length: int, num_samples: int, generator: torch.Generator
) -> Iterator[list[int]]:
    for _ in range(num_samples // length):
        yield from _draw_permutation(length, length, generator)
    # Also drawn when nothing of it is needed, as in torch: it moves the generator on.
    yield from _draw_permutation(length, num_samples % length, generator)


def _draw_permutation(
    length: int, stop: int, generator: torch.Generator
) -> Iterator[list[int]]:
    indices = torch.randperm(length, generator=generator, device=generator.device)
    for start in range(0, stop, _CHUNK):
        yield indices[start : min(start + _CHUNK, stop)].tolist()


class _CompactBatches(_Compact):
    """The batches of `BatchSampler`, over a compact sampler."""

    def __iter__(self) -> Iterator[list[Any]]:
        batch_sampler: BatchSampler = self._sampler
        indices = iter(compact_sampler(batch_sampler.sampler, self._generator))
        size = batch_sampler.batch_size
        while batch := list(islice(indices, size)):
            if len(batch) < size and batch_sampler.drop_last:
                return
            yield batch


class _OnCPU(_Compact):
    """Another sampler of torch's, kept from drawing on torch's default device."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler, None)

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
