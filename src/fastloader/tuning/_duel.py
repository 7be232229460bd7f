"""Which of two loaders is faster: measured in turns, as long as it takes to tell."""

import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from fastloader.tuning._trial import Trial

__all__ = ["Duel", "Pace", "fight", "measure_alike", "median_ratio"]

_MOST_ROUNDS = 6
_CLEAR_GAIN = 1.25
_CLEAR_LOSS = 0.85
_HOPELESS = 0.5
_FAR_MORE = 4
"""Times as many batches as were measured: too few."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long measurements may take."""

    stretch_seconds: float
    """What a stretch is meant to take."""
    deadline: float
    """End of the budget, as `time.perf_counter` counts."""

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent."""
        return time.perf_counter() >= self.deadline

    def has_round(self, rate: float, num_workers: int, num_trials: int = 2) -> bool:
        """Return whether there is time to measure loaders once.

        Args:
            rate: Expected batches per second of all.
            num_workers: As for `num_batches`.
            num_trials: How many loaders.
        """
        seconds = self.round_seconds(rate, num_workers, num_trials)
        return time.perf_counter() + seconds <= self.deadline

    def round_seconds(self, rate: float, num_workers: int, num_trials: int = 2) -> float:
        """Return how long it takes to measure loaders once, as for `has_round`."""
        num_before = max(1, num_workers)  # read before the clock starts
        return num_trials * (self.num_batches(rate, num_workers) + num_before) / rate

    @property
    def seconds_left(self) -> float:
        """Of the budget."""
        return self.deadline - time.perf_counter()

    def num_batches(self, rate: float, num_workers: int) -> int:
        """Return how many batches a stretch has.

        Args:
            rate: Expected batches per second.
            num_workers: The greater number of those that are compared. Workers that take
                equally long come in together, so that other numbers than multiples of it
                would flatter or wrong them.
        """
        unit = max(1, num_workers)
        is_slow = 2 * unit > _FAR_MORE * rate * self.stretch_seconds
        least = max(2, unit) if is_slow else 2 * unit
        wanted = max(least, math.ceil(rate * self.stretch_seconds))
        return -(-wanted // unit) * unit


@dataclass(slots=True)
class Duel:
    """What came out of it."""

    holder_rates: list[float] = field(default_factory=list)
    """Batches per second, round by round."""
    rates: list[float] = field(default_factory=list)
    """The same of the challenger."""

    @property
    def ratios(self) -> list[float]:
        """Rate of the challenger over that of the holder, round by round."""
        return [
            ours / theirs for ours, theirs in zip(self.rates, self.holder_rates, strict=True)
        ]

    @property
    def gain(self) -> float:
        """Their median; what slows the machine for a while slows both, and falls out."""
        return median_ratio(self.ratios)

    @property
    def is_decided(self) -> bool:
        """Whether another round would hardly change what is known."""
        ratios = self.ratios
        if len(ratios) < 2:
            return bool(ratios) and ratios[0] < _HOPELESS
        return (
            len(ratios) >= _MOST_ROUNDS
            or min(ratios) > _CLEAR_GAIN
            or max(ratios) < _CLEAR_LOSS
        )


def fight(
    holder: Trial, challenger: Trial, rate: float, pace: Pace, *, is_tight: bool = False
) -> Duel:
    """Measure two trials in turns.

    Both read the same batches in a round: of samples that differ, other ones would take longer or
    shorter by chance. Every other round goes backwards, so that neither always follows the other:
    the second one may find in the system's cache what the first one has read.

    Args:
        holder: The best so far.
        challenger: What may be better.
        rate: Of the holder, in batches per second, about.
        pace: How long it may take; at least one round is measured.
        is_tight: Whether there is memory for the workers of one of them alone.
    """
    num_workers = max(holder.candidate.num_workers, challenger.candidate.num_workers)
    num_batches = pace.num_batches(rate, num_workers)
    duel = Duel()
    measured: dict[Trial, float] = {}
    while not duel.is_decided:
        if duel.rates and not pace.has_round(min(measured.values()), num_workers):
            break
        trials = (holder, challenger) if len(duel.rates) % 2 == 0 else (challenger, holder)
        # A clear loser is not waited for.
        max_seconds = 3 * max(pace.stretch_seconds, num_batches / rate)
        measured = measure_alike(trials, num_batches, max_seconds, is_tight=is_tight)
        wanted = pace.num_batches(measured[holder], num_workers)
        if wanted > _FAR_MORE * num_batches and not pace.is_over:
            # What was expected was measured while others had the cores. In so few batches those that
            # were made before the clock began would count for workers.
            rate, num_batches, duel = measured[holder], wanted, Duel()
            continue
        duel.holder_rates.append(measured[holder])
        duel.rates.append(measured[challenger])
    return duel


def measure_alike(
    trials: Iterable[Trial], num_batches: int, max_seconds: float, *, is_tight: bool = False
) -> dict[Trial, float]:
    """Return the batches per second of trials, one after the other over the same batches.

    Args:
        trials: In this order.
        num_batches: For each.
        max_seconds: For each, after which it is given up.
        is_tight: Whether the workers of one end before those of the next one start.
    """
    trials = [*trials]
    position = max(trial.position for trial in trials)
    measured = {}
    for trial in trials:
        if is_tight:
            for other in trials:
                if other is not trial:
                    other.close()
        trial.position = position
        measured[trial] = trial.measure(num_batches, max_seconds).rate
    return measured


def median_ratio(ratios: Iterable[float]) -> float:
    """Return the median of ratios; of two in the middle their geometric mean.

    So twice as fast in one round and half as fast in the next is as fast.
    """
    return math.exp(statistics.median(map(math.log, ratios)))
