"""Samples drawn with probabilities in proportion to their weights."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fastloader.errors import SettingsError
from fastloader.randomness._keyed import sample_keys
from fastloader.sampling._base_seed import order_seed
from fastloader.sampling._epoch_sampler import EpochSampler, Indices, Order

__all__ = ["WeightedSampler"]

_Floats = npt.NDArray[np.float64]


class WeightedSampler(EpochSampler):
    """Samples drawn at random, each as often as its weight says.

    Any number of weights is possible (torch's `WeightedRandomSampler` takes 2**24 at most).
    With replacement the k-th draw depends on seed, epoch and k alone, so that ranks make only
    their own draws. Without it, a sample comes at most once an epoch, and the first ones are
    those that drawing one after the other would have given first.

    Args:
        weights: Of all samples, from 0, of any sum, shape ``(N,)``. They are copied.
        num_samples: Of an epoch; None for as many as there are weights.
        replacement: Whether a sample may come again in an epoch.
        seed: Of the draws; the same on all ranks.

    Raises:
        SettingsError: If the weights or their number cannot be used.

    Examples:
        >>> sampler = WeightedSampler([0, 3, 1], num_samples=4000, seed=1)
        >>> np.bincount(list(sampler), minlength=3) // 100
        array([ 0, 29, 10])

    References:
        Without replacement: P. S. Efraimidis and P. G. Spirakis, "Weighted random sampling
        with a reservoir", Information Processing Letters 97 (2006) 181-185.
    """

    def __init__(
        self,
        weights: npt.ArrayLike,
        num_samples: int | None = None,
        *,
        replacement: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.replacement = replacement
        checked = _check_weights(weights)
        self.num_samples = len(checked) if num_samples is None else num_samples
        if self.num_samples < 1:
            raise SettingsError(f"num_samples must be 1 or more, but got {num_samples}.")
        self.set_weights(checked)

    def set_weights(self, weights: npt.ArrayLike) -> None:
        """Draw by other weights from the next pass on.

        Args:
            weights: Of all samples, as at construction; the same on all ranks.

        Raises:
            SettingsError: If they cannot be used.
        """
        checked = _check_weights(weights)
        num_possible = np.count_nonzero(checked)
        if not self.replacement and self.num_samples > num_possible:
            raise SettingsError(
                f"{self.num_samples} different samples cannot be drawn where only "
                f"{num_possible} weights are above 0: lower num_samples, or set "
                "replacement=True."
            )
        # Drawing with replacement needs the sums alone.
        self._numbers = np.cumsum(checked) if self.replacement else checked

    def __len__(self) -> int:
        return self.num_samples

    def draw(self, epoch: int) -> Order:
        """Return the order of an epoch; see `EpochSampler.draw`."""
        seed = order_seed(self.seed, epoch)
        if self.replacement:
            sums = self._numbers
            return lambda places: _pick(sums, _uniform(seed, epoch, places))
        return _draw_different(self._numbers, self.num_samples, seed, epoch).__getitem__


def _check_weights(weights: Any) -> _Floats:
    checked = np.asarray(weights).astype(np.float64)
    if checked.ndim != 1 or not len(checked):
        raise SettingsError(f"weights must be a list, but have the shape {checked.shape}.")
    if not np.isfinite(checked).all() or checked.min() < 0 or checked.max() == 0:
        raise SettingsError("weights must be finite, 0 or more, and not all 0.")
    checked /= checked.max()  # so that no sum overflows
    return checked


def _uniform(seed: int, epoch: int, places: Indices) -> _Floats:
    """Return a number above 0 and up to 1 for each place, of 53 random bits."""
    uniform: _Floats = (sample_keys(seed, epoch, places) >> np.uint64(11)).astype(np.float64)
    uniform += 1
    uniform *= 2.0**-53
    return uniform


def _pick(sums: _Floats, uniform: _Floats) -> Indices:
    # The first sum that is not below: never one of weight 0, whose sum is that before it.
    found: Indices = np.searchsorted(sums, uniform * sums[-1])
    return found


def _draw_different(weights: _Floats, number: int, seed: int, epoch: int) -> Indices:
    waits = np.full(len(weights), np.inf)
    possible = np.flatnonzero(weights)
    # Exponential waiting times: the order in which they end is that of successive draws.
    with np.errstate(over="ignore"):
        waits[possible] = -np.log(_uniform(seed, epoch, possible)) / weights[possible]
    chosen = (
        possible if number == len(possible) else np.argpartition(waits, number - 1)[:number]
    )
    return chosen[np.argsort(waits[chosen], kind="stable")]
