"""The order of the samples of one source in each pass over it, and one rank's share of it."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["SourceOrder"]

_ORDER = 4
"""Tells the seed of these orders from other seeds made of the same number."""


@dataclass
class SourceOrder:
    """Orders of a source: a function of seed and number of the pass, shared out among ranks.

    A rank takes every n-th sample of the order. All ranks get the same number of samples:
    where the source does not divide, its first samples stand at the end of the order again, or
    its last ones are left out.
    """

    num_samples: int
    """Of the source."""
    source: int
    """Its number."""
    seed: int
    shuffle: bool
    drop_last: bool
    """Whether what does not divide is left out."""
    num_replicas: int
    rank: int
    _latest: tuple[int, npt.NDArray[np.int64]] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """Return the samples of one rank in one pass."""
        whole, rest = divmod(self.num_samples, self.num_replicas)
        return whole + bool(rest and not self.drop_last)

    def positions(self, number: int) -> npt.NDArray[np.int64]:
        """Return the positions of this rank's samples in the source, int64, in order.

        Args:
            number: Of the pass.
        """
        if self._latest is None or self._latest[0] != number:
            self._latest = number, self._draw(number)
        return self._latest[1]

    def _draw(self, number: int) -> npt.NDArray[np.int64]:
        order = np.arange(self.num_samples)
        if self.shuffle:
            np.random.default_rng([_ORDER, self.seed, self.source, number]).shuffle(order)
        if self.num_replicas == 1:
            return order
        places = self.rank + self.num_replicas * np.arange(len(self))
        return order[places % self.num_samples]
