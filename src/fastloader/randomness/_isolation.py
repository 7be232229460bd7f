"""Keeps the draws that datasets make from the global generators away from the caller's own."""

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from fastloader.randomness._global_generators import SEEDS_AHEAD, global_generators
from fastloader.randomness._seeding import coming_global_seeds

__all__ = ["BatchIsolation", "DrawingHabits"]

T = TypeVar("T")

_QUIET_SAMPLES = 1024
"""A dataset that has drawn nothing for so many samples is taken for one that never draws."""

_QUIET_BATCHES = 256
"""The same for so many batches, however small."""

_WATCH = 8
"""In how many batches a quiet dataset is looked at once, which takes some microseconds..."""

_SLOW_SECONDS = 50e-3
"""... unless a batch takes so long that this does not matter."""


class DrawingHabits:
    """What is known of whether a dataset draws, over all epochs."""

    def __init__(self) -> None:
        self.num_quiet = 0
        """Samples since the last draw; those of a small batch count for more."""

    @property
    def is_quiet(self) -> bool:
        """Whether the dataset is taken for one that never draws."""
        return self.num_quiet >= _QUIET_SAMPLES

    def note(self, *, has_drawn: bool, num_samples: int) -> None:
        """Take account of a batch."""
        least = _QUIET_SAMPLES // _QUIET_BATCHES
        self.num_quiet = 0 if has_drawn else self.num_quiet + max(num_samples, least)


class BatchIsolation:
    """Seeds the global generators for each batch and puts them back after it.

    So draws do not depend on how many workers there are, and leave no trace in the caller's
    generators. That takes some 10 us, and up to three times as long where a sample that computes for long
    has filled the processor's caches. A dataset that has drawn nothing for 1024 samples is only watched
    from then on, in one of eight batches if they are quick; should it draw after all, it does so from the
    caller's generators, as with torch, and is isolated again as soon as that was seen.

    Args:
        *parts: What the seeds are made of, before the number of the batch.
        habits: What earlier epochs have shown.
    """

    def __init__(self, *parts: int, habits: DrawingHabits | None = None) -> None:
        self._parts = parts
        self._habits = DrawingHabits() if habits is None else habits
        self._is_slow = False
        self._generators = global_generators()
        self._first_ahead = -SEEDS_AHEAD

    def leaves_alone(self, number: int) -> bool:
        """Tell whether a batch needs nothing around it.

        Args:
            number: Of the batch in its epoch.
        """
        return number % _WATCH != 0 and self._habits.is_quiet and not self._is_slow

    def isolated(self, work: Callable[[], T], number: int, num_samples: int) -> T:
        """Make one batch with its draws isolated.

        Args:
            work: Makes it.
            number: Of the batch in its epoch.
            num_samples: In the batch.

        Returns:
            What `work` returns.
        """
        if self._habits.is_quiet:
            return self._watched(work, num_samples)
        # No context manager: each of its steps takes a microsecond or more with caches cold.
        try:
            self._generators.isolate(self._seeds_of(number))
            return work()
        finally:
            has_drawn = self._generators.restore()
            self._habits.note(has_drawn=has_drawn, num_samples=num_samples)

    def _watched(self, work: Callable[[], T], num_samples: int) -> T:
        started = perf_counter()
        self._generators.watch()
        try:
            return work()
        finally:
            self._is_slow = perf_counter() - started > _SLOW_SECONDS
            if self._generators.has_drawn():
                self._habits.note(has_drawn=True, num_samples=num_samples)

    def _seeds_of(self, number: int) -> int:
        """Return which of the prepared seeds are those of a batch."""
        which = number - self._first_ahead
        if not 0 <= which < SEEDS_AHEAD:
            self._first_ahead = -SEEDS_AHEAD  # none is, should this be interrupted
            coming = range(number, number + SEEDS_AHEAD)
            self._generators.prepare(coming_global_seeds(*self._parts, numbers=coming))
            self._first_ahead, which = number, 0
        return which
