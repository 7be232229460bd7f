"""Epochs of a length that is chosen, whatever the length of the order."""

import numpy as np

from fastloader.errors import EmptyEpochError, SettingsError
from fastloader.sampling._epoch_sampler import EpochSampler, Indices, Order, whole_number

__all__ = ["EpochLengthSampler"]


class EpochLengthSampler(EpochSampler):
    """The passes of a sampler one after the other, cut into epochs of another length.

    An epoch goes on where the one before ended, so that epochs shorter than a pass leave no
    sample out for longer than a pass, and in longer ones each pass is drawn anew::

        passes   a c b | b c a | c a b        samplers of three samples
        epochs   a c | b b | c a | c a | b    of two samples each

    Args:
        sampler: Whose passes.
        num_samples: Of an epoch, at least 1.

    Raises:
        SettingsError: If `num_samples` is less than 1.
        EmptyEpochError: If the sampler has no samples.

    Examples:
        >>> from fastloader.sampling import SubsetSampler
        >>> sampler = EpochLengthSampler(SubsetSampler([3, 4, 5], shuffle=False), 2)
        >>> epochs = []
        >>> for epoch in range(3):
        ...     sampler.set_epoch(epoch)
        ...     epochs.append(list(sampler))
        >>> epochs
        [[3, 4], [5, 3], [4, 5]]
    """

    def __init__(self, sampler: EpochSampler, num_samples: int) -> None:
        num_samples = whole_number("num_samples", num_samples)
        if num_samples < 1:
            raise SettingsError(
                f"An epoch must have 1 sample or more, but {num_samples} were asked for."
            )
        if len(sampler) == 0:
            raise EmptyEpochError(
                f"{type(sampler).__name__} has no samples to fill an epoch of {num_samples}."
            )
        super().__init__(sampler.seed)
        self.sampler = sampler
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def draw(self, epoch: int) -> Order:
        """Return the order of an epoch; see `EpochSampler.draw`."""
        sampler = self.sampler
        first, length = epoch * self.num_samples, len(sampler)
        drawn: dict[int, Order] = {}

        def order(places: Indices) -> Indices:
            passes, within = np.divmod(places + first, length)
            indices = np.empty_like(places)
            for number in range(int(passes.min()), int(passes.max()) + 1):
                if number not in drawn:
                    drawn.clear()  # places come in rising order: no pass is needed again
                    drawn[number] = sampler.draw(number)
                is_here = passes == number
                indices[is_here] = drawn[number](within[is_here])
            return indices

        return order
