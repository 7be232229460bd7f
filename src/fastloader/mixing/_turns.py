"""Whose turn it is in a stretch of an epoch: pure functions of rules, seed, epoch and place."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.mixing._mixture import Mixture

__all__ = ["Turns", "deal", "turns_of_block"]

Turns: TypeAlias = npt.NDArray[np.int64]
"""Numbers of sources, shape ``(number of turns,)``."""

_ORDER = 2
"""Tells the seed of the turns from other seeds made of the same number."""


def deal(weights: Sequence[float], dealt: Sequence[int], size: int) -> list[int]:
    """Divide turns among sources so that all dealt so far follow the weights.

    The method of the largest remainder, applied to what each source is due in all: with
    weights that sum to 1, source i has had ``weights[i] * turns`` turns to within one after
    each call, and exactly as many where that is a whole number for every source. Where many
    sources are due less than one turn a call it can be two.

    Args:
        weights: Of each source, 0 or more, in any unit.
        dealt: Turns that each has had.
        size: Turns to divide.

    Returns:
        Turns for each source; their sum is `size`.
    """
    total = sum(dealt) + size
    unit = total / sum(weights)
    due = [weight * unit - had for weight, had in zip(weights, dealt, strict=True)]
    turns = [max(0, int(share)) for share in due]  # due is above -1, so int() is floor here
    rest = size - sum(turns)
    by_remainder = sorted(range(len(due)), key=lambda i: (turns[i] - due[i], i))
    by_remainder = [i for i in by_remainder if weights[i] > 0]
    if rest < 0:  # some had more than they were due
        by_remainder = [i for i in reversed(by_remainder) if turns[i] > 0]
    for i in by_remainder[: abs(rest)]:
        turns[i] += 1 if rest > 0 else -1
    return turns


def turns_of_block(
    mixture: Mixture,
    active: Sequence[int],
    dealt: Sequence[int],
    size: int,
    key: tuple[int, int, int],
) -> Turns:
    """Return the turns of one block.

    Args:
        mixture: The rules.
        active: Sources that take part.
        dealt: Turns that each of these had in earlier blocks.
        size: Turns of the block.
        key: Seed, epoch and number of the block, for what is drawn at random.
    """
    if mixture.strategy == "sequential":
        return np.full(size, active[0])
    if mixture.strategy == "weighted":
        weights = [mixture.weights[source] for source in active]
        counts = deal(weights, dealt, size)
        return np.asarray(active)[_spread(counts, mixture.burst, _generator(key))]
    if mixture.strategy == "random":
        return _draw(mixture, active, size, _generator(key))
    order = mixture.pattern if mixture.strategy == "pattern" else active
    period = np.repeat([source for source in order if source in active], mixture.burst)
    return period[np.arange(sum(dealt), sum(dealt) + size) % len(period)]


def _generator(key: tuple[int, int, int]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([_ORDER, *key]))


def _spread(counts: Sequence[int], burst: int, generator: np.random.Generator) -> Turns:
    """Put turns in random order, those of each source spread over the whole.

    With n bursts of a source, one falls into each n-th of the block, so that no source is
    missing for long.
    """
    sources, places, sizes = [], [], []
    for source, count in enumerate(counts):
        num_bursts = -(-count // burst)
        sources.append(np.full(num_bursts, source))
        places.append((np.arange(num_bursts) + generator.random(num_bursts)) / num_bursts)
        sizes.append(np.minimum(burst, count - burst * np.arange(num_bursts)))
    order = np.argsort(np.concatenate(places), kind="stable")
    return np.repeat(np.concatenate(sources)[order], np.concatenate(sizes)[order])


def _draw(
    mixture: Mixture, active: Sequence[int], size: int, generator: np.random.Generator
) -> Turns:
    weights = np.array([mixture.weights[source] for source in active])
    num_draws = -(-size // mixture.burst)
    drawn = generator.choice(active, num_draws, p=weights / weights.sum())
    return np.repeat(drawn, mixture.burst)[:size]
