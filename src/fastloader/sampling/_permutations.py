"""Permutations of torch's generators, those of the coming epoch drawn while this one is used."""

import os
from collections.abc import Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import nullcontext
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch.utils.data import RandomSampler

from fastloader.threads._openmp import without_openmp

__all__ = ["LEAST_AHEAD", "Permutations", "PermutationsAhead", "TwinOf", "counts_drawn"]

LEAST_AHEAD = 1 << 14
"""Numbers that are worth it: so many take a tenth of a millisecond to draw."""

_MOST_AHEAD = 1 << 24
"""Numbers that may be kept, 8 bytes each."""

_MOST_MISSES = 2
"""Permutations drawn in vain, after which no more are: somebody else draws from the generator."""

_SERIAL = 32768
"""Up to this length torch draws a permutation in one thread by itself."""

_State: TypeAlias = bytes


class _Drawn(NamedTuple):
    permutation: torch.Tensor
    after: torch.Tensor
    """State of the generator."""


class TwinOf(Protocol):
    """Returns what a sampler will draw from when the next epoch begins, as far as can be told."""

    def __call__(self, sampler: RandomSampler, /) -> torch.Generator | None:
        """Return a copy of the generator as it will be; None if that is not known."""
        ...


class Permutations:
    """Draws permutations as they are asked for."""

    def draw(self, length: int, generator: torch.Generator) -> torch.Tensor:
        """Return the numbers below a length, shuffled; int64, shape ``(length,)``.

        Args:
            length: How many.
            generator: Where from; it moves as `torch.randperm` moves it.
        """
        with without_openmp() if length > _SERIAL else nullcontext():
            return torch.randperm(length, generator=generator, device=generator.device)

    def note_end(self, sampler: RandomSampler) -> None:
        """Be told that all permutations of a pass have been drawn."""


class PermutationsAhead(Permutations):
    """Has a thread draw the permutations of the next epoch, from the second one on.

    To shuffle 50,000 numbers takes half a millisecond, as long as gathering a hundred small batches on
    a device. A permutation depends on its length and the state of the generator alone, so one that
    was drawn ahead is used where both are found again, and the generator is left in the state
    that drawing leaves it in. Nothing that is drawn ahead moves a generator of anybody's.

    **Processes:** belongs to the loader; a forked child uses nothing that its parent has drawn.
    **Threads:** that of `executor` draws; one thread at a time calls the methods.
    """

    def __init__(self) -> None:
        self.executor: Executor | None = None
        """Draws; None draws nothing ahead."""
        self.twin_of: TwinOf | None = None
        """Tells what to draw from."""
        self._num_ends = 0
        self._num_misses = 0
        self._pid = os.getpid()
        self._ahead: Future[dict[tuple[int, _State], _Drawn]] | None = None

    def draw(self, length: int, generator: torch.Generator) -> torch.Tensor:
        """See `Permutations.draw`."""
        if self._ahead is not None:
            drawn = self._take(self._ahead, length, generator)
            if drawn is not None:
                generator.set_state(drawn.after)
                return drawn.permutation
        return super().draw(length, generator)

    def note_end(self, sampler: RandomSampler) -> None:
        """Let the permutations of the next pass be drawn, if this is not the first."""
        self._num_ends += 1
        is_wanted = self._num_ends > 1 and self._num_misses < _MOST_MISSES
        length = len(sampler.data_source)
        if not is_wanted or not LEAST_AHEAD <= length <= _MOST_AHEAD:
            return
        twin = None if self.twin_of is None else self.twin_of(sampler)
        if twin is None or self.executor is None:
            return
        counts = counts_drawn(sampler)
        self._pid = os.getpid()
        try:
            self._ahead = self.executor.submit(self._draw_all, length, counts, twin)
        except RuntimeError:  # it has ended with the loader
            self._ahead = None

    def _take(
        self,
        ahead: Future[dict[tuple[int, _State], _Drawn]],
        length: int,
        generator: torch.Generator,
    ) -> _Drawn | None:
        # One that has not begun may wait for this very thread; in a forked child none ever ends.
        if os.getpid() != self._pid or (not ahead.done() and ahead.cancel()):
            self._ahead = None
            return None
        try:
            drawn = ahead.result().pop((length, _state_of(generator)), None)
        except (CancelledError, RuntimeError, MemoryError):  # as may be: it is drawn here
            drawn = None
        if drawn is None:
            self._ahead = None
            self._num_misses += 1
        return drawn

    def _draw_all(
        self, length: int, counts: Sequence[int], twin: torch.Generator
    ) -> dict[tuple[int, _State], _Drawn]:
        found = {}
        for count in counts:
            before = _state_of(twin)
            permutation = super().draw(length, twin)
            kept = permutation if count else permutation[:0].clone()
            found[length, before] = _Drawn(kept, twin.get_state())
        return found


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


def _state_of(generator: torch.Generator) -> _State:
    return generator.get_state().numpy().tobytes()
