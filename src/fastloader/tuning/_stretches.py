"""An order cut into stretches: passes that are as long as a measurement needs."""

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

from fastloader._seeding import seed_global_generators
from fastloader.sampling._chain import samplers_within
from fastloader.sampling._compact import compact_sampler

__all__ = ["Stretches"]


class Stretches:
    """The passes of a sampler one after the other, cut into passes of another length.

    A stretch goes on where the one before ended. So measurements see all of a large dataset,
    and a small one is read again and again. Two of them over copies of a sampler give the same
    indices, also where it draws from the global generators, which are seeded for each pass.

    Args:
        sampler: Sampler or batch sampler.
    """

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler
        self._stream: Iterator[Any] = self._without_end()
        self.length = 1
        """Of the passes that begin from now on."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return islice(self._stream, self.length)

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
