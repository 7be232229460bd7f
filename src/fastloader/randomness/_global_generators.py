"""The global generators of torch, NumPy and Python, looked at and put back in few microseconds."""

import ctypes
import random
import sys
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from fastloader._torch_internals import places_of_draws
from fastloader.threads._interpreter_lock import has_interpreter_lock

__all__ = ["GlobalGenerators", "NumPyGenerator", "PythonGenerator", "TorchGenerator"]

_WORDS = 624
_NUM_BYTES: Final = 4 * (_WORDS + 1)
"""Of the words of a Mersenne Twister and its place in them."""

_MARK_BYTES = 64
"""Of these, that tell whether it has drawn: each draw changes the place, and a whole turn all words."""


class TorchGenerator:
    """A generator of torch for the CPU, as a rule the default one.

    Its state takes 5 kB and a tensor to read. Whether that is another one is read off the few bytes
    of the generator itself that each draw changes, where they have proved to be. They are never written:
    another thread may be drawing.

    Args:
        generator: To look at.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self.places = [_memory(*place) for place in places_of_draws(generator)]
        """What each draw changes, if that is known."""
        self._saved_mark: Any = None
        self._saved: Any = None

    def mark(self) -> Any:
        """Return what differs when the generator has drawn."""
        if not self.places:
            return self._generator.get_state().numpy().tobytes()
        return b"".join(self.places)

    def save(self) -> None:
        """Remember the state."""
        mark = self.mark()
        if mark != self._saved_mark:
            self._saved, self._saved_mark = self._generator.get_state(), mark

    def restore(self) -> None:
        """Put back what was saved."""
        self._generator.set_state(self._saved)


class NumPyGenerator:
    """NumPy's global generator.

    `numpy.random.get_state` turns 624 words into an array one by one. The memory itself is
    public by the generator's ``ctypes`` interface (struct mt19937_state). What it lacks, the second of a
    pair of normal draws that may be kept for later, the next such draw returns and changes no word.
    A generator of another kind, that somebody has put there, is left alone.
    """

    def __init__(self) -> None:
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # not in its stubs
        self._generator = generator  # keeps the memory alive
        self._lock = generator.lock
        self._words: memoryview | None = None
        self.places: list[memoryview] = []
        """What each draw changes; nothing of a generator of another kind."""
        if isinstance(generator, np.random.MT19937):
            self._words = _memory(generator.ctypes.state_address, _NUM_BYTES)
            self.places = [self._words[-_MARK_BYTES:]]
        self._saved_mark = b""
        self._saved_raw = b""
        self._saved_normal: float | None = None

    def mark(self) -> bytes:
        """Return what differs when the generator has drawn."""
        return b"".join(self.places)

    @property
    def has_kept_normal(self) -> bool:
        """Whether the second of a pair of normal draws was kept when the state was saved: none says if it still is."""
        return self._saved_normal is not None

    def save(self) -> None:
        """Remember the state."""
        if self._words is None:
            return
        mark = self.mark()
        if mark != self._saved_mark or self.has_kept_normal:
            self._saved_mark, self._saved_raw = mark, self._words.tobytes()
            self._saved_normal = self._take_normal()
            self.restore(is_touched=False)

    def restore(self, *, is_touched: bool) -> None:
        """Put back what was saved.

        Args:
            is_touched: False if nothing was drawn since it was seeded.
        """
        if self._words is None:
            return
        if self._saved_normal is not None:
            words = np.frombuffer(self._saved_raw, np.uint32)
            state = ("MT19937", words[:-1], int(words[-1]), 1, self._saved_normal)
            np.random.set_state(state)  # noqa: NPY002
            return
        if is_touched:
            self._take_normal()
        self._write(self._saved_raw)

    def _take_normal(self) -> float | None:
        """Return the number that is kept, if there is one, and have none kept; the words may change."""
        before = self.mark()
        normal = np.random.standard_normal()  # noqa: NPY002
        if self.mark() == before:
            return normal
        np.random.standard_normal()  # noqa: NPY002 - the second of the pair
        return None

    def _write(self, raw: bytes) -> None:
        with self._lock:  # others draw without the interpreter's lock
            self._words[:] = raw  # type: ignore[index]  # who calls this has looked


class PythonGenerator:
    """A generator of `random`, as a rule the one behind its functions.

    `random.getstate` makes 625 numbers and takes 8 us. CPython has the words in the object itself
    (struct RandomObject of Modules/_randommodule.c), which are used where they have proved to be there, and where all
    who draw hold the interpreter's lock.

    Args:
        generator: To look at.
    """

    def __init__(self, generator: random.Random) -> None:
        self._generator: Any = generator
        self._words = _words_of_python(generator)
        self.places = [] if self._words is None else [self._words[:_MARK_BYTES]]
        """What each draw changes but a normal one that was kept, if that is known."""
        self._saved_mark: Any = None
        self._saved: Any = None

    @property
    def kept_normal(self) -> Any:
        """The second of a pair of normal draws, if it is kept for later."""
        return self._generator.gauss_next

    def mark(self) -> Any:
        """Return what differs when the generator has drawn."""
        if self._words is None:
            return self._generator.getstate()
        return b"".join(self.places), self.kept_normal

    def save(self) -> None:
        """Remember the state."""
        mark = self.mark()
        if mark != self._saved_mark:
            self._saved_mark = mark
            if self._words is None:
                self._saved = mark
            else:
                self._saved = self._words.tobytes(), self.kept_normal

    def restore(self) -> None:
        """Put back what was saved."""
        if self._words is None:
            self._generator.setstate(self._saved)
        else:
            self._words[:], self._generator.gauss_next = self._saved


class GlobalGenerators:
    """The generators behind the functions of torch, NumPy and `random`."""

    def __init__(self) -> None:
        self._torch = TorchGenerator(torch.default_generator)
        self._numpy = NumPyGenerator()
        self._python = PythonGenerator(random.getstate.__self__)  # type: ignore[attr-defined]  # a bound method
        self._all = self._torch, self._numpy, self._python
        self._places = [*self._torch.places, *self._numpy.places, *self._python.places]
        self._are_known = bool(self._torch.places and self._python.places)
        self._saved_mark: Any = None

    def mark(self) -> Any:
        """Return what differs when one of them has drawn."""
        if not self._are_known:
            return [one.mark() for one in self._all]
        # In one go: with caches cold, to ask each of them takes three times as long.
        return b"".join(self._places), self._python.kept_normal

    def save(self) -> None:
        """Remember the states."""
        mark = self.mark()
        if mark != self._saved_mark or self._numpy.has_kept_normal:
            self._saved_mark = mark
            for one in self._all:
                one.save()

    def restore(self, *, is_touched: bool) -> None:
        """Put back what was saved.

        Args:
            is_touched: False if nothing was drawn since the generators were seeded.
        """
        self._torch.restore()
        self._python.restore()
        self._numpy.restore(is_touched=is_touched)


def _memory(address: int, num_bytes: int) -> memoryview:
    return memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")


def _words_of_python(generator: random.Random) -> memoryview | None:
    """Return an index and 624 words, or None where they are not known to be."""
    offset = _offset_of_words()
    return None if offset is None else _memory(id(generator) + offset, _NUM_BYTES)


@lru_cache(maxsize=1)
def _offset_of_words() -> int | None:
    """Return where an index and 624 words begin within a generator of `random`."""
    room = random.Random.__base__.__basicsize__ - object.__basicsize__  # type: ignore[union-attr]
    is_known = sys.implementation.name == "cpython" and has_interpreter_lock()
    if not is_known or room < _NUM_BYTES:
        return None
    generator = random.Random(0)  # noqa: S311 - it is no secret
    found = _memory(id(generator) + object.__basicsize__, _NUM_BYTES)
    index, *words = np.frombuffer(found, np.uint32).tolist()
    return object.__basicsize__ if (*words, index) == generator.getstate()[1] else None
