"""Keeps the draws that datasets make from the global generators away from the caller's own."""

import random
import time
from collections.abc import Callable
from typing import Any

import torch

from fastloader.randomness._global_generators import (
    GlobalStates,
    NumPyGenerator,
    PythonGenerator,
    TorchGenerator,
    seeded_states,
)

__all__ = ["BatchIsolation", "DrawingHabits"]

_QUIET_SAMPLES = 1024
"""A dataset that has drawn nothing for so many samples is taken for one that never draws."""

_QUIET_BATCHES = 256
"""The same for so many batches, however small."""

_WATCH = 8
"""In how many batches a quiet dataset is looked at once, which takes some microseconds..."""

_SLOW_SECONDS = 50e-3
"""... unless a batch takes so long that this does not matter."""

_MOST_AHEAD = 8
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
    has filled the processor's caches; so the seeds of several batches are worked out at once. A dataset that has drawn
    nothing for 1024 samples is only watched from then on, in one of eight batches if they are
    quick; should it draw after all, it does so from the caller's generators, as with torch, and
    is isolated again as soon as that was seen.

    Args:
        *parts: What the seeds are made of, before the number of the batch.
        habits: What earlier epochs have shown.
    """

    def __init__(self, *parts: int, habits: DrawingHabits | None = None) -> None:
        self._parts = parts
        self._habits = DrawingHabits() if habits is None else habits
        self._is_slow = False
        self._torch = TorchGenerator(torch.default_generator)
        self._numpy = NumPyGenerator()
        self._python = PythonGenerator(random.getstate.__self__)  # type: ignore[attr-defined]  # a bound method
        self._ahead: dict[int, GlobalStates] = {}
        self._num_ahead = 1

    def leaves_alone(self, number: int) -> bool:
        """Tell whether a batch needs nothing around it.

        Args:
            number: Of the batch in its epoch.
        """
        return number % _WATCH != 0 and self._habits.is_quiet and not self._is_slow

    def around(self, number: int, num_samples: int) -> "_Until":
        """Isolate the draws of one batch, from now until the block that this is for has run.

        Args:
            number: Of the batch in its epoch.
            num_samples: In the batch.
        """
        if self._habits.is_quiet:
            return _Until(self._look, self._marks(), num_samples, time.perf_counter())
        self._torch.save()
        self._python.save()
        self._numpy.save()
        seeded = self._seeded(number)
        self._torch.put(seeded.torch)
        self._python.put(seeded.python)
        self._numpy.put(seeded.numpy)
        return _Until(self._put_back, self._marks(), num_samples)

    def _seeded(self, number: int) -> GlobalStates:
        if number not in self._ahead:
            coming = range(number, number + self._num_ahead)
            self._ahead = {one: seeded_states(*self._parts, one) for one in coming}
            self._num_ahead = min(2 * self._num_ahead, _MOST_AHEAD)
        return self._ahead.pop(number)

    def _look(self, before: Any, num_samples: int, started: float) -> None:
        self._is_slow = time.perf_counter() - started > _SLOW_SECONDS
        if self._marks() != before:
            self._habits.note(has_drawn=True, num_samples=num_samples)

    def _put_back(self, seeded: Any, num_samples: int) -> None:
        has_drawn = self._marks() != seeded
        self._habits.note(has_drawn=has_drawn, num_samples=num_samples)
        self._torch.restore()
        self._python.restore()
        self._numpy.restore(is_touched=has_drawn)

    def _marks(self) -> Any:
        return self._torch.mark(), self._numpy.mark(), self._python.mark()


class _Until:
    """Calls a function at the end of a block.

    A generator as a context manager would set an attribute of an exception that passes
    through it, which a frozen dataclass refuses; `ExitStack` takes several times as long.

    Args:
        end: To be called.
        *arguments: It gets.
    """

    __slots__ = ("_arguments", "_end")

    def __init__(self, end: Callable[..., None], *arguments: Any) -> None:
        self._end = end
        self._arguments = arguments

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self._end(*self._arguments)
