"""What passes over the data add up to."""

from dataclasses import dataclass, field
from typing import TypeVar

from fastloader.stats._durations import Durations
from fastloader.stats._sources import SourceCount, add_counts

__all__ = ["Totals"]

Number = TypeVar("Number", int, float)


@dataclass
class Totals:
    """Sums over passes, or parts of passes.

    The first batch of a pass, those that were made while it was waited for, and the rest are
    apart: only the rest tells what goes on for hours.
    """

    num_passes: int = 0
    num_batches: int = 0
    num_samples: int = 0
    elapsed_seconds: float = 0.0
    """From asking for the iterator to the last batch that came."""
    first: Durations = field(default_factory=Durations)
    """Times to the first batch, that of asking for the iterator included."""
    warm_up: Durations = field(default_factory=Durations)
    steady: Durations = field(default_factory=Durations)
    gaps: Durations = field(default_factory=Durations)
    """Times between the last batch of a pass and the first of the next, in the loader."""
    copies: Durations = field(default_factory=Durations)
    """Times of copies to a device, on that device; where they were asked for."""
    steady_seconds: float = 0.0
    """In and between the calls of the steady state."""
    steady_samples: int = 0
    num_measured_batches: int = 0
    """Whose bytes were counted."""
    measured_bytes: int = 0
    busy_seconds: list[float] = field(default_factory=list)
    """By worker, and so are the following."""
    worker_cpu_seconds: list[float] = field(default_factory=list)
    worker_batches: list[int] = field(default_factory=list)
    worker_elapsed_seconds: list[float] = field(default_factory=list)
    sources: dict[str, SourceCount] = field(default_factory=dict)
    """What each source of a mixture gave, by name."""

    def merge(self, other: "Totals") -> None:
        """Add the sums of other passes."""
        self.num_passes += other.num_passes
        self.num_batches += other.num_batches
        self.num_samples += other.num_samples
        self.elapsed_seconds += other.elapsed_seconds
        self.steady_seconds += other.steady_seconds
        self.steady_samples += other.steady_samples
        self.num_measured_batches += other.num_measured_batches
        self.measured_bytes += other.measured_bytes
        self.first.merge(other.first)
        self.warm_up.merge(other.warm_up)
        self.steady.merge(other.steady)
        self.gaps.merge(other.gaps)
        self.copies.merge(other.copies)
        self.sources = add_counts(self.sources, other.sources)
        self.add_workers(
            other.busy_seconds,
            other.worker_cpu_seconds,
            other.worker_batches,
            other.worker_elapsed_seconds,
        )

    def add_workers(
        self,
        busy_seconds: list[float],
        cpu_seconds: list[float],
        num_batches: list[int],
        elapsed_seconds: list[float],
    ) -> None:
        """Add what workers have done, each list by worker."""
        _add_each(self.busy_seconds, busy_seconds)
        _add_each(self.worker_cpu_seconds, cpu_seconds)
        _add_each(self.worker_batches, num_batches)
        _add_each(self.worker_elapsed_seconds, elapsed_seconds)

    def subtract_workers(self, earlier: "Totals") -> None:
        """Leave out what the workers of a pass had done at an earlier moment of it."""
        self.add_workers(
            [-seconds for seconds in earlier.busy_seconds],
            [-seconds for seconds in earlier.worker_cpu_seconds],
            [-count for count in earlier.worker_batches],
            [-seconds for seconds in earlier.worker_elapsed_seconds],
        )


def _add_each(sums: list[Number], others: list[Number]) -> None:
    for place, other in enumerate(others):
        if place < len(sums):
            sums[place] += other
        else:
            sums.append(other)
