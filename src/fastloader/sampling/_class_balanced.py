"""The same number of samples of each class, whatever their shares in the data."""

import numpy as np
import numpy.typing as npt

from fastloader.errors import SettingsError
from fastloader.randomness._keyed import sample_keys
from fastloader.randomness._seeding import derive_seed
from fastloader.sampling._epoch_sampler import EpochSampler, Indices, Order
from fastloader.sampling._shuffled import permutation

__all__ = ["ClassBalancedSampler"]

_CLASS = 2
"""Tells the seed of a class from other seeds made of the same number."""


class ClassBalancedSampler(EpochSampler):
    """Samples of all classes in equal numbers, shuffled.

    The numbers are exact, not expected ones: each class gives as many samples as each other,
    or one more in some epochs where they do not divide. A class goes through its samples in
    another order each time, and goes on in the next epoch where it ended, so that each of
    its samples comes equally often. See `WeightedSampler` for other shares.

    Args:
        labels: Class of each sample, shape ``(N,)``, of any type that can be sorted.
        num_samples: Of an epoch; None for as many as there are labels.
        seed: Of the order; the same on all ranks.

    Raises:
        SettingsError: If there are no labels, or `num_samples` is less than 1.

    Examples:
        >>> labels = ["rare"] + 5 * ["common"]
        >>> [labels[index] for index in ClassBalancedSampler(labels)].count("rare")
        3
    """

    def __init__(
        self, labels: npt.ArrayLike, num_samples: int | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(seed)
        array = np.asarray(labels)
        if array.ndim != 1 or not len(array):
            raise SettingsError(
                f"labels must be a list with the class of each sample, but have the shape "
                f"{array.shape}."
            )
        self.num_samples = len(array) if num_samples is None else num_samples
        if self.num_samples < 1:
            raise SettingsError(f"num_samples must be 1 or more, but got {num_samples}.")
        _, classes, counts = np.unique(array, return_inverse=True, return_counts=True)
        self._samples = np.argsort(classes, kind="stable")
        self._ends = np.cumsum(counts)

    def __len__(self) -> int:
        return self.num_samples

    def draw(self, epoch: int) -> Order:
        """Return the order of an epoch; see `EpochSampler.draw`."""
        parts = []
        for number, members in enumerate(np.split(self._samples, self._ends[:-1])):
            first, end = (self._num_given(number, before) for before in (epoch, epoch + 1))
            seed = derive_seed(self.seed, _CLASS, number)
            parts.append(members[_repeated_permutations(len(members), seed, first, end)])
        indices = np.concatenate(parts)
        return indices[permutation(len(indices), self.seed, epoch)].__getitem__

    def _num_given(self, number: int, epoch: int) -> int:
        """Return how many samples a class has given before an epoch."""
        num_classes = len(self._ends)
        each, rest = divmod(self.num_samples, num_classes)
        # The classes take turns in giving one more.
        return epoch * each + -(-(epoch * rest - number) // num_classes)


def _repeated_permutations(length: int, seed: int, first: int, end: int) -> Indices:
    """Return a part of an endless row of permutations of the numbers below `length`."""
    passes = range(first // length, -(-end // length))
    keys = sample_keys(seed, 0, np.arange(passes.start * length, passes.stop * length))
    row: Indices = np.argsort(keys.reshape(-1, length), axis=1).ravel()
    skipped = passes.start * length
    return row[first - skipped : end - skipped]
