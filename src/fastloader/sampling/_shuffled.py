"""Samplers that give each sample once an epoch: all of them or some, shuffled or in order."""

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.errors import SettingsError
from fastloader.sampling._base_seed import order_seed
from fastloader.sampling._epoch_sampler import EpochSampler, Indices, Order

__all__ = ["OrderedSampler", "ShuffledSampler", "SubsetSampler", "permutation"]


def permutation(length: int, seed: int, epoch: int) -> Indices:
    """Return the numbers below `length` in the order that a loader with this seed shuffles to.

    Args:
        length: How many.
        seed: Of the loader or sampler.
        epoch: Number of the epoch.

    Returns:
        int64, shape ``(length,)``.
    """
    generator = torch.Generator().manual_seed(order_seed(seed, epoch))
    return torch.randperm(length, generator=generator, device="cpu").numpy()


class ShuffledSampler(EpochSampler):
    """Every sample once an epoch, in another order each epoch.

    The order is that of ``FastLoader(..., shuffle=True, seed=seed)``. It takes 8 bytes a
    sample while an epoch runs.

    Args:
        data_source: The dataset, or its length.
        seed: Of the order; the same on all ranks.

    Examples:
        >>> sampler = ShuffledSampler(range(5), seed=1)
        >>> sorted(sampler)
        [0, 1, 2, 3, 4]
    """

    def __init__(self, data_source: Sized | int, seed: int = 0) -> None:
        super().__init__(seed)
        self._length = data_source if isinstance(data_source, int) else len(data_source)

    def __len__(self) -> int:
        return self._length

    def draw(self, epoch: int) -> Order:
        """Return the order of an epoch; see `EpochSampler.draw`."""
        return permutation(self._length, self.seed, epoch).__getitem__


class OrderedSampler(EpochSampler):
    """Every sample once an epoch, from the first to the last.

    Args:
        data_source: The dataset, or its length.
    """

    shuffle = False

    def __init__(self, data_source: Sized | int) -> None:
        super().__init__()
        self._length = data_source if isinstance(data_source, int) else len(data_source)

    def __len__(self) -> int:
        return self._length

    def draw(self, epoch: int) -> Order:  # noqa: ARG002 - all are alike
        """Return the order of an epoch; see `EpochSampler.draw`."""
        return _same


def _same(places: Indices) -> Indices:
    return places


class SubsetSampler(EpochSampler):
    """Some samples, each once an epoch.

    Args:
        indices: Which, integers from 0, shape ``(N,)``. A boolean mask of all samples will do too.
        shuffle: Whether they come in another order each epoch; else in the order given.
        seed: Of the order; the same on all ranks.

    Raises:
        SettingsError: If the indices are no list of integers from 0.
    """

    def __init__(
        self, indices: Sequence[int] | npt.ArrayLike, *, shuffle: bool = True, seed: int = 0
    ) -> None:
        super().__init__(seed)
        self._indices = _as_indices(indices)
        self.shuffle = shuffle

    def __len__(self) -> int:
        return len(self._indices)

    def draw(self, epoch: int) -> Order:
        """Return the order of an epoch; see `EpochSampler.draw`."""
        indices = self._indices
        if not self.shuffle:
            return indices.__getitem__
        places = permutation(len(indices), self.seed, epoch)
        return lambda wanted: indices[places[wanted]]


def _as_indices(indices: Any) -> Indices:
    array = np.asarray(indices)
    if array.dtype == bool:
        array = np.flatnonzero(array)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise SettingsError(
            "indices must be a list of integers or a mask, but got an array of "
            f"{array.dtype} with shape {array.shape}."
        )
    if array.size and array.min() < 0:
        raise SettingsError(f"indices must be 0 or more, but one is {array.min()}.")
    return array.astype(np.int64, copy=False)
