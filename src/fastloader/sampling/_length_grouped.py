"""Shuffled samples, those of like length next to each other: little padding in a batch."""

import numpy as np
import numpy.typing as npt

from fastloader.errors import SettingsError
from fastloader.randomness._seeding import derive_seed
from fastloader.sampling._epoch_sampler import EpochSampler, Order
from fastloader.sampling._shuffled import permutation

__all__ = ["LengthGroupedSampler"]

_GROUPS = 3
"""Tells the seed of the order of groups from other seeds made of the same number."""


class LengthGroupedSampler(EpochSampler):
    """Every sample once an epoch, shuffled, in groups of samples of like length.

    Samples are shuffled and divided into pools; a pool is sorted by length and cut into groups;
    the groups are shuffled. With groups of a batch, or on several ranks of a batch of all ranks
    together, the samples of a batch need little padding. On several ranks all have samples of
    the same group in the same step, so that none waits for one with longer samples.

    It is a sampler of samples, not of batches: batches have one size, ranks have equal steps,
    and loaders and frameworks treat it like any other.

    Args:
        lengths: Of all samples, shape ``(N,)``; the number of tokens, say.
        group_size: Samples in a group: the batch size times the number of ranks.
        groups_per_pool: Groups that are sorted together. More mean less padding; fewer mean
            batches that are put together more at random.
        seed: Of the order; the same on all ranks.

    Raises:
        SettingsError: If a number is less than 1, or the lengths are no list of numbers.

    Examples:
        >>> lengths = np.array([1, 9, 1, 9, 1, 9])
        >>> order = list(LengthGroupedSampler(lengths, group_size=3))
        >>> sorted([lengths[order[:3]].tolist(), lengths[order[3:]].tolist()])
        [[1, 1, 1], [9, 9, 9]]
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        group_size: int,
        *,
        groups_per_pool: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self._lengths = np.asarray(lengths)
        if self._lengths.ndim != 1 or self._lengths.dtype.kind not in "iuf":
            raise SettingsError(
                "lengths must be a list of numbers, but got an array of "
                f"{self._lengths.dtype} with shape {self._lengths.shape}."
            )
        if group_size < 1 or groups_per_pool < 1:
            raise SettingsError(
                "group_size and groups_per_pool must be 1 or more, but got "
                f"{group_size} and {groups_per_pool}."
            )
        self.group_size = group_size
        self.groups_per_pool = groups_per_pool

    def __len__(self) -> int:
        return len(self._lengths)

    def draw(self, epoch: int) -> Order:
        """Return the order of an epoch; see `EpochSampler.draw`."""
        indices = permutation(len(self), self.seed, epoch)
        num_groups = len(indices) // self.group_size
        # What fills no group comes last, and is any samples: the longest would be the ones that
        # are dropped.
        whole = indices[: num_groups * self.group_size]
        pools = np.arange(len(whole)) // (self.group_size * self.groups_per_pool)
        groups = whole[np.lexsort((self._lengths[whole], pools))].reshape(-1, self.group_size)
        order = permutation(num_groups, derive_seed(self.seed, _GROUPS), epoch)
        indices[: len(whole)] = groups[order].ravel()
        return indices.__getitem__
