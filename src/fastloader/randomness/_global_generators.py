"""The global generators of torch, NumPy and Python, looked at and put back in few microseconds."""

import ctypes
import random
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from fastloader._extension_modules import TWISTERS, extension_module
from fastloader._torch_internals import places_of_draws
from fastloader.randomness._seeding import set_global_seeds
from fastloader.threads._interpreter_lock import has_interpreter_lock

__all__ = [
    "SEEDS_AHEAD",
    "GlobalGenerators",
    "NumPyGenerator",
    "PythonGenerator",
    "TorchGenerator",
    "global_generators",
]

SEEDS_AHEAD: Final = 8
"""Batches whose seeds are worked out at once: of several together, the words take a third of the time that they take
one by one, and with caches cold the first seeds take as long as eight others."""

_SEEDS = struct.Struct(f"={SEEDS_AHEAD}Q{SEEDS_AHEAD}I")

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
        self.seed = generator.manual_seed
        """Sets the state by a number of 64 bits."""
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
        self.lock = generator.lock
        """What who writes the words has to hold: others draw without the interpreter's lock."""
        self.words: memoryview | None = None
        """All 624 and the place in them, if it is one."""
        self.places: list[memoryview] = []
        """What each draw changes; nothing of a generator of another kind."""
        if isinstance(generator, np.random.MT19937):
            self.words = _memory(generator.ctypes.state_address, _NUM_BYTES)
            self.places = [self.words[-_MARK_BYTES:]]
        self._saved_mark = b""
        self._saved_raw = b""
        self.saved_normal: float | None = None
        """The second of a pair of normal draws, if it was kept when the state was saved: none says if it still is."""

    def mark(self) -> bytes:
        """Return what differs when the generator has drawn."""
        return b"".join(self.places)

    def save(self) -> None:
        """Remember the state."""
        if self.words is None:
            return
        mark = self.mark()
        if mark != self._saved_mark or self.saved_normal is not None:
            self._saved_mark, self._saved_raw = mark, self.words.tobytes()
            self.saved_normal = self._take_normal()
            self.restore(is_touched=False)

    def restore(self, *, is_touched: bool) -> None:
        """Put back what was saved.

        Args:
            is_touched: False if nothing was drawn since it was seeded.
        """
        if self.words is None:
            return
        if self.saved_normal is not None:
            words = np.frombuffer(self._saved_raw, np.uint32)
            state = ("MT19937", words[:-1], int(words[-1]), 1, self.saved_normal)
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
        with self.lock:
            self.words[:] = raw  # type: ignore[index]  # who calls this has looked


class PythonGenerator:
    """A generator of `random`, as a rule the one behind its functions.

    `random.getstate` makes 625 numbers and takes 8 us. CPython has the words in the object itself
    (struct RandomObject of Modules/_randommodule.c), which are used where they have proved to be there, and where all
    who draw hold the interpreter's lock.

    Args:
        generator: To look at.
    """

    def __init__(self, generator: random.Random) -> None:
        self.generator: Any = generator
        """Whose `gauss_next` is the second of a pair of normal draws, if it is kept for later, which needs no word."""
        self.words = _words_of_python(generator)
        """The place and all 624, if that is known."""
        self.places = [] if self.words is None else [self.words[:_MARK_BYTES]]
        """What each draw changes but a normal one that was kept, if that is known."""
        self._saved_mark: Any = None
        self._saved: Any = None

    def mark(self) -> Any:
        """Return what differs when the generator has drawn."""
        if self.words is None:
            return self.generator.getstate()
        return b"".join(self.places), self.generator.gauss_next

    def save(self) -> None:
        """Remember the state."""
        mark = self.mark()
        if mark != self._saved_mark:
            self._saved_mark = mark
            if self.words is None:
                self._saved = mark
            else:
                self._saved = self.words.tobytes(), self.generator.gauss_next

    def restore(self) -> None:
        """Put back what was saved."""
        if self.words is None:
            self.generator.setstate(self._saved)
        else:
            self.words[:], self.generator.gauss_next = self._saved


class GlobalGenerators:
    """The generators behind the functions of torch, NumPy and `random`.

    Args:
        torchs: That of torch.
        numpys: That of NumPy.
        pythons: That of `random`.
    """

    def __init__(
        self, torchs: TorchGenerator, numpys: NumPyGenerator, pythons: PythonGenerator
    ) -> None:
        self._torch, self._numpy, self._python = self._all = torchs, numpys, pythons
        self._places = *torchs.places, *numpys.places, *pythons.places
        self._are_known = bool(torchs.places and pythons.places)
        self._seeds: Sequence[tuple[int, int, int]] = ()
        self._saved_mark: Any = None
        self._watched_mark: Any = None
        self._is_isolated = False

    def prepare(self, seeds: Sequence[tuple[int, int, int]]) -> None:
        """Take seeds to isolate by.

        Args:
            seeds: SEEDS_AHEAD from `global_seeds`: of torch, Python and NumPy.
        """
        self._seeds = seeds

    def isolate(self, which: int) -> None:
        """Remember the states, seed the generators and watch them.

        Args:
            which: Of the seeds that were prepared.
        """
        self._save()
        self._is_isolated = True
        self._seed(which)

    def watch(self) -> None:
        """Remember what draws would change."""
        self._watched_mark = self._mark()

    def has_drawn(self) -> bool:
        """Tell whether one of them has drawn since they were watched."""
        return bool(self._mark() != self._watched_mark)

    def restore(self) -> bool:
        """Put back what was remembered when they were isolated, however far that came.

        Returns:
            Whether one of them has drawn in between.
        """
        if not self._is_isolated:
            return False
        has_drawn = self.has_drawn()
        self._torch.restore()
        self._python.restore()
        self._numpy.restore(is_touched=has_drawn)
        self._is_isolated = False
        return has_drawn

    def _seed(self, which: int) -> None:
        """Seed the generators and watch them."""
        set_global_seeds(*self._seeds[which])
        self.watch()

    def _mark(self) -> Any:
        """Return what differs when one of them has drawn."""
        if not self._are_known:
            return [one.mark() for one in self._all]
        # In one go: with caches cold, to ask each of them takes three times as long.
        return b"".join(self._places), self._python.generator.gauss_next

    def _save(self) -> None:
        mark = self._mark()
        if mark != self._saved_mark or self._numpy.saved_normal is not None:
            self._saved_mark = mark
            for one in self._all:
                one.save()


class _CompiledGenerators(GlobalGenerators):
    """The same where the words of all are known, and what is done with them is compiled.

    Args:
        torchs: As there, like the next two.
        numpys: Whose words are known.
        pythons: The same.
        twisters: The class of that name.
    """

    def __init__(
        self,
        torchs: TorchGenerator,
        numpys: NumPyGenerator,
        pythons: PythonGenerator,
        twisters: Any,
    ) -> None:
        super().__init__(torchs, numpys, pythons)
        self._twisters = twisters(self._places, self._python.words, self._numpy.words)
        self._saved_normal: Any = None
        self._watched_normal: Any = None

    def prepare(self, seeds: Sequence[tuple[int, int, int]]) -> None:
        super().prepare(seeds)
        _, pythons, numpys = zip(*seeds, strict=True)
        self._twisters.prepare(_SEEDS.pack(*pythons, *numpys))

    def _save(self) -> None:
        # Each look at an attribute and each call takes several times as long with caches cold.
        python = self._python.generator
        if (
            self._numpy.saved_normal is not None
            or python.gauss_next != self._saved_normal
            or not self._twisters.is_as_saved()
        ):
            super()._save()
            self._twisters.save()
            self._saved_normal = python.gauss_next

    def _seed(self, which: int) -> None:
        if self._numpy.saved_normal is not None:  # only NumPy's own seeding takes it away
            super()._seed(which)
            return
        self._torch.seed(self._seeds[which][0])
        with self._numpy.lock:
            self._twisters.seed(which)
        self._python.generator.gauss_next = self._watched_normal = None

    def watch(self) -> None:
        self._twisters.watch()
        self._watched_normal = self._python.generator.gauss_next

    def has_drawn(self) -> bool:
        normal = self._python.generator.gauss_next
        return bool(self._twisters.has_drawn() or normal != self._watched_normal)

    def restore(self) -> bool:
        if (
            not self._is_isolated
            or self._numpy.saved_normal is not None
            or self._twisters.has_drawn()
        ):
            return super().restore()
        self._torch.restore()
        with self._numpy.lock:
            self._twisters.restore()
        self._python.generator.gauss_next = self._saved_normal
        self._is_isolated = False
        return False


def global_generators() -> GlobalGenerators:
    """Return the global generators, as they are handled fastest here."""
    torchs = TorchGenerator(torch.default_generator)
    numpys = NumPyGenerator()
    pythons = PythonGenerator(random.getstate.__self__)  # type: ignore[attr-defined]  # a bound method
    module = extension_module(TWISTERS)
    if module and torchs.places and numpys.places and pythons.places:
        return _CompiledGenerators(torchs, numpys, pythons, module.Twisters)
    return GlobalGenerators(torchs, numpys, pythons)


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
