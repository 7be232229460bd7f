"""Quantiles of durations in bounded memory."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Durations"]

_SMALLEST_SECONDS = 1e-8
_GROWTH = 1.04
"""From one bucket to the next: quantiles are right to 2 %."""
_NUM_BUCKETS = 850  # up to half a month


class Durations:
    """A histogram of durations whose buckets grow by a constant factor.

    Two of them add up to one of all durations, and a quantile is off by at most 2 % of itself,
    however many there are: C. Masson, J. E. Rim, H. K. Lee (2019), DDSketch, Proceedings of the
    VLDB Endowment 12(12), 2195-2205.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_BUCKETS, np.int64)
        self.count = 0
        self.sum_seconds = 0.0
        self.max_seconds = 0.0

    def add(self, seconds: npt.NDArray[np.float64] | Sequence[float]) -> None:
        """Add durations.

        Args:
            seconds: Any number of them, shape ``(N,)``, 0 or more.
        """
        durations = np.asarray(seconds, np.float64)
        if not len(durations):
            return
        scaled = np.maximum(durations, _SMALLEST_SECONDS) / _SMALLEST_SECONDS
        buckets = (np.log(scaled) / np.log(_GROWTH)).astype(np.int64)
        np.minimum(buckets, _NUM_BUCKETS - 1, out=buckets)
        self._counts += np.bincount(buckets, minlength=_NUM_BUCKETS)
        self.count += len(durations)
        self.sum_seconds += float(durations.sum())
        self.max_seconds = max(self.max_seconds, float(durations.max()))

    def merge(self, other: "Durations") -> None:
        """Add the durations of another histogram."""
        self._counts += other._counts  # noqa: SLF001 - of the same class
        self.count += other.count
        self.sum_seconds += other.sum_seconds
        self.max_seconds = max(self.max_seconds, other.max_seconds)

    def quantile(self, share: float) -> float | None:
        """Return the duration that a share of all does not exceed, in seconds.

        Args:
            share: From 0 to 1.

        Returns:
            None if there are no durations.
        """
        if not self.count:
            return None
        rank = max(1, int(np.ceil(share * self.count)))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        middle = _SMALLEST_SECONDS * _GROWTH ** (bucket + 0.5)
        return float(min(middle, self.max_seconds))
