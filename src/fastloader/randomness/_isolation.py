"""Keeps the draws that datasets make from the global generators away from the caller's own."""

from collections.abc import Iterator
from time import perf_counter

from fastloader._notes import user_block
from fastloader.randomness._global_generators import GlobalGenerators
from fastloader.randomness._seeding import global_seeds, set_global_seeds

__all__ = ["BatchIsolation", "DrawingHabits"]

_QUIET_SAMPLES = 1024
"""A dataset that has drawn nothing for so many samples is taken for one that never draws."""

_QUIET_BATCHES = 256
"""The same for so many batches, however small."""

_WATCH = 8
"""In how many batches a quiet dataset is looked at once, which takes some microseconds..."""

_SLOW_SECONDS = 50e-3
"""... unless a batch takes so long that this does not matter."""

_AHEAD = 8
"""Batches whose seeds are worked out at once: with caches cold the first of them takes as long as eight others."""


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
    generators. That takes some 10 us, and several times as long where a sample that computes for long
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
        self._generators = GlobalGenerators()
        self._seeds_ahead: dict[int, tuple[int, int, int]] = {}

    def leaves_alone(self, number: int) -> bool:
        """Tell whether a batch needs nothing around it.

        Args:
            number: Of the batch in its epoch.
        """
        return number % _WATCH != 0 and self._habits.is_quiet and not self._is_slow

    @user_block
    def around(self, number: int, num_samples: int) -> Iterator[None]:
        """Isolate the draws of one batch, which is made in the block.

        Args:
            number: Of the batch in its epoch.
            num_samples: In the batch.
        """
        generators, is_quiet, started = self._generators, self._habits.is_quiet, perf_counter()
        if not is_quiet:
            generators.save()
            set_global_seeds(*self._seeds(number))
        before = generators.mark()
        try:
            yield
        finally:
            has_drawn = generators.mark() != before
            if is_quiet:
                self._is_slow = perf_counter() - started > _SLOW_SECONDS
            else:
                generators.restore(is_touched=has_drawn)
            if has_drawn or not is_quiet:
                self._habits.note(has_drawn=has_drawn, num_samples=num_samples)

    def _seeds(self, number: int) -> tuple[int, int, int]:
        if number not in self._seeds_ahead:
            coming = range(number, number + _AHEAD)
            self._seeds_ahead = {one: global_seeds(*self._parts, one) for one in coming}
        return self._seeds_ahead.pop(number)
