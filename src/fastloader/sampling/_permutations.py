"""Permutations of torch's generators, those of coming epochs drawn while this one is used."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from queue import SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch.utils.data import RandomSampler

from fastloader.threads._openmp import without_openmp

__all__ = ["LEAST_AHEAD", "Permutations", "PermutationsAhead", "TwinsOf", "counts_drawn"]

LEAST_AHEAD = 1 << 14
"""Numbers that are worth it: so many take a tenth of a millisecond to draw."""

_MOST_AHEAD = 1 << 24
"""Numbers that may be kept, 8 bytes each."""

_MOST_MISSES = 2
"""Rows drawn in vain, one after the other, after which there are no more: somebody else draws from the generator."""

_SERIAL = 32768
"""Up to this length torch draws a permutation in one thread by itself."""

_State: TypeAlias = bytes


class _Drawn(NamedTuple):
    """A permutation of so many numbers, and the states of the generator around it."""

    length: int
    before: _State
    permutation: torch.Tensor
    after: torch.Tensor


class TwinsOf(Protocol):
    """Returns what a sampler will draw from in its next passes, as far as can be told."""

    def __call__(self, sampler: RandomSampler, /) -> Iterator[torch.Generator] | None:
        """Return copies of the generator as it will be; None if that is not known.

        Args:
            sampler: One that draws without replacement.

        Returns:
            That of each pass, to be asked for when all permutations of the pass before have been drawn.
        """
        ...


class Permutations:
    """Draws permutations as they are asked for."""

    def draw(self, length: int, generator: torch.Generator) -> torch.Tensor:
        """Return the numbers below a length, shuffled; int64, shape ``(length,)``.

        Args:
            length: How many.
            generator: Where from; it moves as `torch.randperm` moves it.
        """
        with _in_this_thread(length):
            return torch.randperm(length, generator=generator, device=generator.device)

    def note_end(self, sampler: RandomSampler) -> None:
        """Be told that all permutations of a pass have been drawn."""


class _Row:
    """Permutations that a thread draws one after the other.

    Args:
        length: Numbers in each.
        counts: How many of them are used, for each one of a pass.
        twins: What those of each pass are drawn from.
        num_passes: How many of the passes.
    """

    def __init__(
        self,
        length: int,
        counts: Sequence[int],
        twins: Iterator[torch.Generator],
        num_passes: int,
    ) -> None:
        self._length = length
        self._counts = counts
        self._twins = twins
        self._num_passes = num_passes
        self._drawn: SimpleQueue[_Drawn | None] = SimpleQueue()
        self._is_wanted = True
        self.num_left = num_passes * len(counts)
        """That were not taken yet."""
        self.job: Future[None] = Future()
        """In which they are drawn."""

    def draw(self) -> None:
        """Draw all of them, unless they are not wanted any more."""
        try:
            with _in_this_thread(self._length):
                for twin in islice(self._twins, self._num_passes):
                    for count in self._counts:
                        if not self._is_wanted:
                            return
                        self._drawn.put(self._draw_one(twin, count))
        finally:
            self._drawn.put(None)  # for who waits for one that will not come

    def _draw_one(self, twin: torch.Generator, count: int) -> _Drawn:
        before = _state_of(twin)
        permutation = torch.randperm(self._length, generator=twin)
        kept = permutation if count else permutation[:0].clone()
        return _Drawn(self._length, before, kept, twin.get_state())

    def has_begun(self) -> bool:
        """Tell whether they are being drawn; if not, they will never be: the thread may be this very one."""
        return not self.job.cancel()

    def take(self, length: int, generator: torch.Generator) -> _Drawn | None:
        """Return the next one, waiting for it, if it is what would be drawn now; else there will be no more."""
        drawn = self._drawn.get()
        self.num_left -= 1
        if drawn is None or (drawn.length, drawn.before) != (length, _state_of(generator)):
            self._is_wanted = False
            return None
        return drawn


class PermutationsAhead(Permutations):
    """Has a thread draw the permutations of the next epochs, from the second one on.

    To shuffle 50,000 numbers takes half a millisecond, as long as gathering a hundred small batches on
    a device. A permutation depends on its length and the state of the generator alone, so one that
    was drawn ahead is used where both are found again, and the generator is left in the state
    that drawing leaves it in. Nothing that is drawn ahead moves a generator of anybody's.

    **Processes:** belongs to the loader; a forked child uses nothing that its parent has drawn.
    **Threads:** that of `executor` draws; one thread at a time calls the methods.
    """

    executor: Executor | None = None
    """Draws; None draws nothing ahead."""

    def __init__(self) -> None:
        self.twins_of: TwinsOf | None = None
        """Tells what to draw from."""
        self.num_passes = 1
        """Whose permutations are drawn in a row: several if the thread has little else to do, since to
        wake it costs half of what it saves."""
        self._num_ends = 0
        self._num_misses = 0
        self._pid = os.getpid()
        self._row: _Row | None = None

    def draw(self, length: int, generator: torch.Generator) -> torch.Tensor:
        """See `Permutations.draw`."""
        row, self._row = self._row, None
        # In a forked child none is ever drawn.
        if row is not None and os.getpid() == self._pid and row.has_begun():
            drawn = row.take(length, generator)
            self._num_misses += drawn is None
            if drawn is not None:
                self._num_misses, self._row = 0, row if row.num_left else None
                generator.set_state(drawn.after)
                return drawn.permutation
        return super().draw(length, generator)

    def note_end(self, sampler: RandomSampler) -> None:
        """Let the permutations of the next passes be drawn, if this is not the first."""
        self._num_ends += 1
        is_wanted = self._row is None and self._num_ends > 1 and self._num_misses < _MOST_MISSES
        length = len(sampler.data_source)
        if not is_wanted or not LEAST_AHEAD <= length <= _MOST_AHEAD:
            return
        twins = None if self.twins_of is None else self.twins_of(sampler)
        if twins is None or self.executor is None:
            return
        counts = counts_drawn(sampler)
        num_passes = min(self.num_passes, max(1, _MOST_AHEAD // (length * len(counts))))
        row = _Row(length, counts, twins, num_passes)
        self._pid = os.getpid()
        with suppress(RuntimeError):  # the executor has ended with the loader
            row.job = self.executor.submit(row.draw)
            self._row = row


def counts_drawn(sampler: RandomSampler) -> list[int]:
    """Return how much of each permutation a pass of a sampler uses, in the order of drawing.

    Args:
        sampler: One that draws without replacement.
    """
    length, num_samples = len(sampler.data_source), sampler.num_samples
    counts = [length] * (num_samples // length)
    # Also drawn when nothing of it is needed, as in torch: it moves the caller's generator on.
    if num_samples % length or sampler.generator is not None:
        counts.append(num_samples % length)
    return counts


def _in_this_thread(length: int) -> AbstractContextManager[object]:
    """Keep torch to the calling thread while permutations of so many numbers are drawn."""
    return without_openmp() if length > _SERIAL else nullcontext()


def _state_of(generator: torch.Generator) -> _State:
    return generator.get_state().numpy().tobytes()
