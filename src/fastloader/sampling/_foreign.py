"""Samplers of others as samplers of an order by seed and epoch."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastloader.errors import SettingsError
from fastloader.inspection._lengths import required_length
from fastloader.sampling._epoch_length import EpochLengthSampler
from fastloader.sampling._epoch_sampler import EpochSampler, Order
from fastloader.sampling._shuffled import OrderedSampler, ShuffledSampler, SubsetSampler
from fastloader.sampling._weighted import WeightedSampler

__all__ = ["ForeignSampler", "as_epoch_sampler", "translate"]


def translate(sampler: Any, seed: int) -> EpochSampler | None:
    """Return a sampler that draws as `sampler` does, but by seed and epoch alone.

    Torch's own samplers draw from a generator that may stand elsewhere on another rank. Only
    exact types are translated: a subclass may do anything.

    Args:
        sampler: Any sampler, or indices in an order.
        seed: Of the order.

    Returns:
        The sampler itself if it is one of ours, and None if nothing is known of it.
    """
    if isinstance(sampler, EpochSampler):
        return sampler
    make = _TRANSLATIONS.get(type(sampler))
    return None if make is None else make(sampler, seed)


def _translate_random(sampler: RandomSampler, seed: int) -> EpochSampler:
    length = len(sampler.data_source)
    if sampler.replacement:
        return WeightedSampler(np.ones(length), sampler.num_samples, seed=seed)
    shuffled = ShuffledSampler(length, seed)
    if sampler.num_samples == length:
        return shuffled
    return EpochLengthSampler(shuffled, sampler.num_samples)


def _translate_weighted(sampler: WeightedRandomSampler, seed: int) -> EpochSampler:
    return WeightedSampler(
        sampler.weights, sampler.num_samples, replacement=sampler.replacement, seed=seed
    )


def _translate_indices(indices: Any, _seed: int) -> EpochSampler:
    return SubsetSampler(indices, shuffle=False)


_TRANSLATIONS: dict[type, Callable[[Any, int], EpochSampler]] = {
    SequentialSampler: lambda sampler, _seed: OrderedSampler(sampler),
    RandomSampler: _translate_random,
    SubsetRandomSampler: lambda sampler, seed: SubsetSampler(sampler.indices, seed=seed),
    WeightedRandomSampler: _translate_weighted,
    **dict.fromkeys((list, tuple, range, np.ndarray, torch.Tensor), _translate_indices),
}


def as_epoch_sampler(sampler: Iterable[int] | Sequence[int], seed: int = 0) -> EpochSampler:
    """Return `sampler` in a form that can be cut and shared, whatever it is.

    Args:
        sampler: Any sampler of integers.
        seed: Of the order, if it is one of torch's that draws at random.
    """
    translated = translate(sampler, seed)
    return ForeignSampler(sampler) if translated is None else translated


class ForeignSampler(EpochSampler):
    """A sampler of which nothing is known but that it can be iterated.

    Args:
        sampler: Any sampler of integers with a length.

    Raises:
        SettingsError: If it has no length.
    """

    def __init__(self, sampler: Any) -> None:
        super().__init__()
        self.sampler = sampler
        required_length(sampler, "give it __len__, so that its order can be shared or cut.")

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler which epoch it is, if it can be told."""
        self.epoch = epoch
        tell = getattr(self.sampler, "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def draw(self, epoch: int) -> Order:
        """Return the order of an epoch; see `EpochSampler.draw`.

        Raises:
            SettingsError: If the sampler gives anything but integers.
        """
        self.set_epoch(epoch)
        try:
            return np.fromiter(self.sampler, np.int64).__getitem__
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"{type(self.sampler).__name__} must give integers to be shared or cut."
            ) from error
