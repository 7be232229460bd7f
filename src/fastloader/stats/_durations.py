"""Quantiles of durations in bounded memory."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Durations"]

_SMALLEST_SECONDS = 2.0**-27
"""7.5 ns: shorter than any call."""
_LARGEST_SECONDS = 2.0**21 - 1
"""24 days."""
_DROPPED_BITS = 47
"""Of a float64: the 5 first bits of its mantissa and its exponent are the number of its bucket, so
that each power of two has 32 buckets, of which none is wider than a 32nd of what it holds."""


def _raw_bucket(seconds: float) -> int:
    return int(np.float64(seconds).view(np.int64)) >> _DROPPED_BITS


_FIRST_BUCKET = _raw_bucket(_SMALLEST_SECONDS)
_NUM_BUCKETS = _raw_bucket(_LARGEST_SECONDS) + 1 - _FIRST_BUCKET


class Durations:
    """A histogram of durations whose buckets are the wider the longer they are.

    Two of them add up to one of all durations, and a quantile is off by at most 2 % of itself,
    however many there are: C. Masson, J. E. Rim, H. K. Lee (2019), DDSketch, Proceedings of the
    VLDB Endowment 12(12), 2195-2205. The buckets there grow by a constant factor; here each
    doubling is cut into 32 of one width, as in G. Tene's HdrHistogram, which needs no logarithm.
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
        longest = float(durations.max())
        held = np.maximum(durations, _SMALLEST_SECONDS)
        if longest > _LARGEST_SECONDS:
            np.minimum(held, _LARGEST_SECONDS, out=held)
        buckets = held.view(np.int64)
        buckets >>= _DROPPED_BITS
        buckets -= _FIRST_BUCKET
        self._counts += np.bincount(buckets, minlength=_NUM_BUCKETS)
        self.count += len(durations)
        self.sum_seconds += float(durations.sum())
        self.max_seconds = max(self.max_seconds, longest)

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
        middle = np.int64((2 * (bucket + _FIRST_BUCKET) + 1) << (_DROPPED_BITS - 1))
        return float(min(middle.view(np.float64), self.max_seconds))
