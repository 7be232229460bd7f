"""Quantiles of durations in bounded memory."""

from collections.abc import Sequence
from struct import pack

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

_MOST_LOOSE = 4096


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
        self._loose: list[float] = []
        self._counts: npt.NDArray[np.int64] | None = None  # many are made that get nothing
        self._count = 0
        self._sum_seconds = 0.0
        self._max_seconds = 0.0

    @property
    def count(self) -> int:
        """How many there are."""
        self._sort_in()
        return self._count

    @property
    def sum_seconds(self) -> float:
        """All of them together."""
        self._sort_in()
        return self._sum_seconds

    @property
    def max_seconds(self) -> float:
        """The longest; 0 if there are none."""
        self._sort_in()
        return self._max_seconds

    def add(self, seconds: Sequence[float]) -> None:
        """Add durations, which are put into buckets when there are many or somebody asks.

        Args:
            seconds: Any number of them, 0 or more each.
        """
        self._loose.extend(seconds)
        if len(self._loose) >= _MOST_LOOSE:
            self._sort_in()

    def merge(self, other: "Durations") -> None:
        """Add the durations of another histogram."""
        self.add(other._loose)  # noqa: SLF001 - of the same class, and so are the following
        if other._counts is None:  # noqa: SLF001
            return
        self._add_counts(other._counts)  # noqa: SLF001
        self._count += other._count  # noqa: SLF001
        self._sum_seconds += other._sum_seconds  # noqa: SLF001
        self._max_seconds = max(self._max_seconds, other._max_seconds)  # noqa: SLF001

    def quantile(self, share: float) -> float | None:
        """Return the duration that a share of all does not exceed, in seconds.

        Args:
            share: From 0 to 1.

        Returns:
            None if there are no durations.
        """
        self._sort_in()
        if self._counts is None:
            return None
        rank = max(1, int(np.ceil(share * self._count)))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        middle = np.int64((2 * (bucket + _FIRST_BUCKET) + 1) << (_DROPPED_BITS - 1))
        return float(min(middle.view(np.float64), self._max_seconds))

    def _sort_in(self) -> None:
        if not self._loose:
            return
        # A third of the time of np.fromiter.
        durations = np.frombuffer(pack(f"{len(self._loose)}d", *self._loose))
        self._loose.clear()
        longest = float(durations.max())
        held = np.maximum(durations, _SMALLEST_SECONDS)
        if longest > _LARGEST_SECONDS:
            np.minimum(held, _LARGEST_SECONDS, out=held)
        buckets = held.view(np.int64)
        buckets >>= _DROPPED_BITS
        buckets -= _FIRST_BUCKET
        self._add_counts(np.bincount(buckets, minlength=_NUM_BUCKETS))
        self._count += len(durations)
        self._sum_seconds += float(durations.sum())
        self._max_seconds = max(self._max_seconds, longest)

    def _add_counts(self, counts: npt.NDArray[np.int64]) -> None:
        if self._counts is None:
            self._counts = counts.copy()
        else:
            self._counts += counts
