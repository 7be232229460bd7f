"""An order cut into stretches: passes that are as long as a measurement needs."""

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

from fastloader.randomness._seeding import seed_global_generators
from fastloader.sampling._chain import samplers_within
from fastloader.sampling._compact import compact_sampler

__all__ = ["MOST_BEFORE", "Stretches", "Tape"]

MOST_BEFORE = 64
"""So many places before a stretch can still be read by another one."""


class Tape:
    """The passes of a sampler one after the other, read again by each loader that is compared.

    So all have read the same, and measurements go on where the one before ended: they see all of
    a large dataset, and a small one again and again.

    Args:
        sampler: Sampler or batch sampler. The global generators are seeded for each of its passes.
    """

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler
        self._stream: Iterator[Any] = self._without_end()
        self._drawn: list[Any] = []
        self._first = 0  # place of the first of these

    def read(self, start: int, length: int) -> Iterator[Any]:
        """Yield the indices at some places; fewer if the order is empty.

        Args:
            start: First place, `MOST_BEFORE` at most before that of an earlier call.
            length: How many.
        """
        forgotten = min(len(self._drawn), max(0, start - MOST_BEFORE - self._first))
        del self._drawn[:forgotten]
        self._first += forgotten
        for place in range(start, start + length):
            while place - self._first >= len(self._drawn):
                drawn = [*islice(self._stream, 1)]
                if not drawn:
                    return
                self._drawn += drawn
            yield self._drawn[place - self._first]

    def _without_end(self) -> Iterator[Any]:
        for number in count():
            for sampler in samplers_within(self._sampler):
                set_epoch = getattr(sampler, "set_epoch", None)
                if callable(set_epoch):
                    set_epoch(number)
            seed_global_generators(number)
            indices = iter(compact_sampler(self._sampler))
            try:
                yield next(indices)
            except StopIteration:
                return  # an order without samples would be asked for ever
            yield from indices


class Stretches:
    """Passes over pieces of a tape, for one loader.

    Args:
        tape: The same for all loaders that are compared.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.start = 0
        """Place where passes begin from now on."""
        self.length = 1
        """Of these."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return self._tape.read(self.start, self.length)
