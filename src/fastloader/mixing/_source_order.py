"""The order of one rank's samples of one source in each pass over it."""

import numpy as np

from fastloader.sampling import DistributedSampler
from fastloader.sampling._epoch_sampler import Indices, Order

__all__ = ["SourceOrder"]


class SourceOrder:
    """The orders of a source, of which the latest is kept.

    Args:
        sampler: Gives the order of each pass, as that of an epoch.
    """

    def __init__(self, sampler: DistributedSampler) -> None:
        self._sampler = sampler
        self._number: int | None = None
        self._order: Order | None = None

    def __len__(self) -> int:
        """Return the samples of this rank in one pass."""
        return self._sampler.num_samples

    def positions(self, number: int, start: int, stop: int) -> Indices:
        """Return the positions of samples in the source, int64.

        Args:
            number: Of the pass.
            start: Place in the order of the first.
            stop: Place after the last; cut to the end of the order.
        """
        if self._order is None or number != self._number:
            self._order, self._number = self._sampler.draw(number), number
        return self._order(np.arange(start, min(stop, len(self))))
