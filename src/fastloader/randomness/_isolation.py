"""Keeps the draws that datasets make from the global generators away from the caller's own."""

import time
from contextlib import ExitStack
from typing import Any

import torch

from fastloader.randomness._global_generators import NumPyGenerator, PythonGenerator
from fastloader.randomness._seeding import seed_global_generators

__all__ = ["BatchIsolation", "DrawingHabits"]

_QUIET_SAMPLES = 1024
"""A dataset that has drawn nothing for so many samples is taken for one that never draws."""

_QUIET_BATCHES = 256
"""The same for so many batches, however small."""

_WATCH = 8
"""In how many batches a quiet dataset is looked at once, which takes 10 us, and up to 300 where caches are cold..."""

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
    generators. That takes some 20 us, more than many a small batch, and up to 500 where a sample that computes for long
    has filled the processor's caches. A dataset that has drawn
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
        self._numpy = NumPyGenerator()
        self._python = PythonGenerator()

    def leaves_alone(self, number: int) -> bool:
        """Tell whether a batch needs nothing around it.

        Args:
            number: Of the batch in its epoch.
        """
        return number % _WATCH != 0 and self._habits.is_quiet and not self._is_slow

    def around(self, number: int, num_samples: int) -> ExitStack:
        """Isolate the draws of one batch, from now until the block that this is for has run.

        A generator as a context manager would set an attribute of an exception that passes
        through it, which a frozen dataclass refuses.

        Args:
            number: Of the batch in its epoch.
            num_samples: In the batch.
        """
        block = ExitStack()
        if self._habits.is_quiet:
            block.callback(self._look, self._states(), time.perf_counter(), num_samples)
            return block
        torch_state = torch.default_generator.get_state()
        self._python.save()
        self._numpy.save()
        seed_global_generators(*self._parts, number)
        block.callback(self._put_back, torch_state, self._states(), num_samples)
        return block

    def _look(self, before: Any, started: float, num_samples: int) -> None:
        self._is_slow = time.perf_counter() - started > _SLOW_SECONDS
        if self._states() != before:
            self._habits.note(has_drawn=True, num_samples=num_samples)

    def _put_back(self, torch_state: torch.Tensor, seeded: Any, num_samples: int) -> None:
        has_drawn = self._states() != seeded
        self._habits.note(has_drawn=has_drawn, num_samples=num_samples)
        torch.default_generator.set_state(torch_state)
        self._python.restore()
        self._numpy.restore(is_touched=has_drawn)

    def _states(self) -> tuple[bytes, bytes, Any]:
        return (
            torch.default_generator.get_state().numpy().tobytes(),
            self._numpy.raw(),
            self._python.raw(),
        )
