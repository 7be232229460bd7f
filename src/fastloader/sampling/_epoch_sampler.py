"""Samplers whose order is a pure function of seed and epoch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from operator import index
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from fastloader.errors import SettingsError

__all__ = [
    "CHUNK",
    "EpochSampler",
    "Indices",
    "Order",
    "check_epoch_seed",
    "has_chunks",
    "iter_chunks",
    "whole_number",
]

CHUNK = 8192
"""Indices made at a time."""

Indices: TypeAlias = npt.NDArray[np.int64]

Order: TypeAlias = Callable[[Indices], Indices]
"""From places in an order, int64 of shape ``(N,)``, to the indices there."""


class EpochSampler(Sampler[int], ABC):
    """A sampler whose order is a pure function of `seed` and `epoch`.

    So all ranks know the same order without talking, a resumed run finds its place without
    drawing what lies before it, and the order does not depend on any global state. A
    `FastLoader` moves `epoch` on by itself; a stock `DataLoader` needs `set_epoch` before each
    epoch.

    A subclass has ``__len__`` and `draw`. It then is iterable, can be sharded by
    `fastloader.sampling.DistributedSampler`, and makes no Python object for each sample.

    Args:
        seed: Of the order, from 0; the same on all ranks.

    Raises:
        SettingsError: If the seed is negative.
    """

    shuffle: bool = True
    """Whether the order is random."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = check_epoch_seed(seed)
        self.epoch = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples of an epoch."""

    @abstractmethod
    def draw(self, epoch: int) -> Order:
        """Return the order of an epoch: a function from places in it to indices.

        It is called with places that rise from call to call, and its results are not changed.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            Takes places from 0, int64 of shape ``(N,)``, and returns indices from 0, the same.
        """

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass.

        Args:
            epoch: Number of the epoch, from 0.
        """
        self.epoch = epoch

    def refresh(self) -> None:
        """Give the next pass another order, which is that of the next epoch."""
        self.set_epoch(self.epoch + 1)

    def chunks(self, first: int = 0) -> Iterator[Indices]:
        """Return the order of the epoch as arrays, as it is at the time of the call.

        Args:
            first: How many samples at its start to leave out.
        """
        return iter_chunks(self.draw, self.epoch, first, len(self))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(chunk.tolist() for chunk in self.chunks())


def has_chunks(sampler: object) -> bool:
    """Tell whether the order of a sampler is that of its `EpochSampler.chunks`."""
    return isinstance(sampler, EpochSampler) and type(sampler).__iter__ is EpochSampler.__iter__


def check_epoch_seed(seed: int) -> int:
    """Return a seed that an order can be drawn from.

    Raises:
        SettingsError: If it is negative or no whole number.
    """
    number = whole_number("seed", seed)
    if number < 0:
        raise SettingsError(f"seed must be 0 or more, but got {number}.")
    return number


def whole_number(name: str, value: Any) -> int:
    """Return an option as an int; variables of the environment, for instance, are text.

    Raises:
        SettingsError: If it is no whole number.
    """
    try:
        return index(value)
    except TypeError:
        raise SettingsError(f"{name} must be a whole number, but got {value!r}.") from None


def iter_chunks(
    draw: Callable[[int], Order], epoch: int, first: int, length: int
) -> Iterator[Indices]:
    """Draw an order when its first indices are asked for, and yield them as arrays.

    Args:
        draw: Draws the order of an epoch.
        epoch: Number of the epoch.
        first: Place where to begin.
        length: Place where to end.
    """
    if first < length:
        order = draw(epoch)
        for start in range(first, length, CHUNK):
            yield order(np.arange(start, min(start + CHUNK, length)))
