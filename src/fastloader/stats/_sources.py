"""What each source of a mixture gave."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["CountsSources", "SourceCount", "add_counts", "subtract_counts"]


@dataclass(frozen=True, slots=True)
class SourceCount:
    """What came of one source."""

    num_batches: int = 0
    """Batches of this source alone; 0 where batches are mixed of several."""
    num_samples: int = 0
    waited_seconds: float = 0.0
    """Time in ``next`` for its batches; 0 where one loader reads all sources."""


@runtime_checkable
class CountsSources(Protocol):
    """A sampler that knows which source its batches are of, and has a state for each place."""

    def count_sources(
        self, state: Mapping[str, Any] | None, epoch: int
    ) -> dict[str, SourceCount]:
        """Return what it gave in an epoch, up to a state.

        Args:
            state: What its ``state_dict`` returned; None, or one of another epoch, for the
                beginning.
            epoch: Number of the epoch.
        """
        ...


def add_counts(
    counts: Mapping[str, SourceCount], others: Mapping[str, SourceCount]
) -> dict[str, SourceCount]:
    """Return what both have given together, by name."""
    return _combine(counts, others, 1) if others else dict(counts)


def subtract_counts(
    counts: Mapping[str, SourceCount], earlier: Mapping[str, SourceCount]
) -> dict[str, SourceCount]:
    """Return what was given since an earlier moment, by name."""
    return _combine(counts, earlier, -1)


def _combine(
    counts: Mapping[str, SourceCount], others: Mapping[str, SourceCount], sign: int
) -> dict[str, SourceCount]:
    none = SourceCount()
    combined = {}
    for name in dict.fromkeys((*counts, *others)):
        one, other = counts.get(name, none), others.get(name, none)
        combined[name] = SourceCount(
            one.num_batches + sign * other.num_batches,
            one.num_samples + sign * other.num_samples,
            one.waited_seconds + sign * other.waited_seconds,
        )
    return combined
