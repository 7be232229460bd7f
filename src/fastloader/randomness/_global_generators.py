"""The states of the global generators of NumPy and Python, looked at in under a microsecond."""

import ctypes
import random
import sys
from functools import lru_cache
from typing import Any, Final

import numpy as np

__all__ = ["NumPyGenerator", "PythonGenerator"]

_WORDS = 624
_NUM_BYTES: Final = 4 * (_WORDS + 1)
"""Of the words of a Mersenne Twister and its place in them."""


class NumPyGenerator:
    """NumPy's global generator.

    `numpy.random.get_state` turns 624 words into an array one by one. The memory itself is
    public by the generator's ``ctypes`` interface (struct mt19937_state), but lacks the second of a
    pair of normal draws that may be kept for later; so it stands in for the state only if there is
    none.
    """

    def __init__(self) -> None:
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # not in its stubs
        self._generator = generator  # keeps the address alive
        is_known = isinstance(generator, np.random.MT19937)
        self._address = generator.ctypes.state_address if is_known else None
        self._saved_raw = b""
        self._saved: dict[str, Any] | None = None

    def raw(self) -> bytes:
        """Return what differs when the generator has drawn."""
        if self._address is None:
            return b""
        return ctypes.string_at(self._address, _NUM_BYTES)

    def save(self) -> None:
        """Remember the state."""
        if self._address is None:
            return
        raw = self.raw()
        if self._saved is None or self._saved["has_gauss"] or raw != self._saved_raw:
            self._saved = np.random.get_state(legacy=False)  # noqa: NPY002
            self._saved_raw = raw

    def restore(self, *, is_touched: bool) -> None:
        """Put back what was saved.

        Args:
            is_touched: False if it was seeded, and nothing drawn since.
        """
        if self._address is None or self._saved is None:
            return
        if is_touched or self._saved["has_gauss"]:
            np.random.set_state(self._saved)  # noqa: NPY002
        else:
            ctypes.memmove(self._address, self._saved_raw, _NUM_BYTES)


class PythonGenerator:
    """The generator behind the functions of `random`.

    `random.getstate` makes 625 numbers and takes 8 us. CPython has the words in the object itself
    (struct RandomObject of Modules/_randommodule.c), which are read, never written, where they have
    proved to be there.
    """

    def __init__(self) -> None:
        self._generator: random.Random = random.getstate.__self__  # type: ignore[attr-defined]
        self._address = _address_of_words(self._generator)
        self._saved_raw: Any = None
        self._saved: Any = None

    def raw(self) -> Any:
        """Return what differs when the generator has drawn."""
        if self._address is None:
            return self._generator.getstate()
        words = ctypes.string_at(self._address, _NUM_BYTES)
        return words, self._generator.gauss_next  # type: ignore[attr-defined]  # of a pair, for later

    def save(self) -> None:
        """Remember the state."""
        raw = self.raw()
        if raw != self._saved_raw:
            self._saved, self._saved_raw = self._generator.getstate(), raw

    def restore(self) -> None:
        """Put back what was saved."""
        self._generator.setstate(self._saved)


@lru_cache(maxsize=1)
def _address_of_words(generator: random.Random) -> int | None:
    """Return where an index and 624 words lie, or None where that is not known."""
    room = type(generator).__base__.__basicsize__ - object.__basicsize__  # type: ignore[union-attr]
    if sys.implementation.name != "cpython" or room < _NUM_BYTES:
        return None
    address = id(generator) + object.__basicsize__
    index, *words = np.frombuffer(ctypes.string_at(address, _NUM_BYTES), np.uint32).tolist()
    return address if (*words, index) == generator.getstate()[1] else None
