"""Keeps the draws that datasets make from the global generators away from the caller's own."""

import ctypes
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fastloader._seeding import seed_global_generators

__all__ = ["BatchIsolation", "DrawingHabits"]

_QUIET_SAMPLES = 1024
"""A dataset that has drawn nothing for so many samples is taken for one that never draws."""

_QUIET_BATCHES = 256
"""The same for so many batches, however small."""

_WATCH = 8
"""In how many batches a quiet dataset is looked at once, which takes 20 to 40 us..."""

_SLOW_SECONDS = 2e-3
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
    generators. That takes some 0.1 ms, more than many a small batch. A dataset that has drawn
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
        self._numpy = _NumPyGenerator()

    def leaves_alone(self, number: int) -> bool:
        """Tell whether a batch needs nothing around it.

        Args:
            number: Of the batch in its epoch.
        """
        return number % _WATCH != 0 and self._habits.is_quiet and not self._is_slow

    @contextmanager
    def around(self, number: int, num_samples: int) -> Iterator[None]:
        """Isolate the draws of one batch while the block runs.

        Args:
            number: Of the batch in its epoch.
            num_samples: In the batch.
        """
        if self._habits.is_quiet:
            watches_python = number % _WATCH == 0
            before = self._states(watches_python)
            started = time.perf_counter()
            yield
            self._is_slow = time.perf_counter() - started > _SLOW_SECONDS
            if self._states(watches_python) != before:
                self._habits.note(has_drawn=True, num_samples=num_samples)
            return
        torch_state, python_state = torch.default_generator.get_state(), random.getstate()
        self._numpy.save()
        seed_global_generators(*self._parts, number)
        seeded = self._states()
        try:
            yield
        finally:
            has_drawn = self._states() != seeded
            self._habits.note(has_drawn=has_drawn, num_samples=num_samples)
            torch.default_generator.set_state(torch_state)
            random.setstate(python_state)
            self._numpy.restore(is_touched=has_drawn)

    def _states(self, watches_python: bool = True) -> tuple[bytes, bytes, Any]:
        return (
            torch.default_generator.get_state().numpy().tobytes(),
            self._numpy.raw(),
            random.getstate() if watches_python else None,
        )


class _NumPyGenerator:
    """NumPy's global generator, saved and restored in under a microsecond where it can be.

    `numpy.random.get_state` turns 624 words into an array one by one. The memory itself is
    public by the generator's ``ctypes`` interface, but lacks the second of a pair of normal
    draws that may be kept for later; so it stands in for the state only if there is none.
    """

    _NUM_BYTES = 625 * 4  # key and position, struct mt19937_state

    def __init__(self) -> None:
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # not in its stubs
        self._generator = generator  # keeps the address alive
        is_known = isinstance(generator, np.random.MT19937)
        self._address = generator.ctypes.state_address if is_known else None
        self._saved_raw = b""
        self._saved: dict[str, Any] | None = None

    def raw(self) -> bytes:
        if self._address is None:
            return b""
        return ctypes.string_at(self._address, self._NUM_BYTES)

    def save(self) -> None:
        if self._address is None:
            return
        raw = self.raw()
        if self._saved is None or self._saved["has_gauss"] or raw != self._saved_raw:
            self._saved = np.random.get_state(legacy=False)  # noqa: NPY002
            self._saved_raw = raw

    def restore(self, *, is_touched: bool) -> None:
        """Put back what was saved; untouched means seeded, and nothing drawn since."""
        if self._address is None or self._saved is None:
            return
        if is_touched or self._saved["has_gauss"]:
            np.random.set_state(self._saved)  # noqa: NPY002
        else:
            ctypes.memmove(self._address, self._saved_raw, self._NUM_BYTES)
