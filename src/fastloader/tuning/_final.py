"""The last comparison of a search: the few that came near the best, all in turns."""

from collections.abc import Sequence

from fastloader.tuning._duel import Pace, measure_alike, median_ratio
from fastloader.tuning._trial import Trial

__all__ = ["median_shares", "play_final"]

_MOST_ROUNDS = 9


def play_final(trials: Sequence[Trial], rate: float, pace: Pace) -> list[list[float]]:
    """Measure trials round by round, every other round backwards.

    In a search each was compared with the best of its time only, and was given up or taken after a
    few measurements. Of several comparisons of equals one comes out wrong; here all have the same
    moments, good and bad.

    Args:
        trials: The first is the best so far.
        rate: Of that, in batches per second, about.
        pace: How long it may take; at least one round is measured.

    Returns:
        Batches per second of each trial, round by round.
    """
    num_workers = max(t.candidate.num_workers for t in trials)
    num_batches = pace.num_batches(rate, num_workers)
    max_seconds = 3 * max(pace.stretch_seconds, num_batches / rate)
    rates: list[list[float]] = [[] for _ in trials]
    measured: dict[Trial, float] = {}
    for number in range(_MOST_ROUNDS):
        if number and not pace.has_round(min(measured.values()), num_workers, len(trials)):
            break
        turns = trials if number % 2 == 0 else trials[::-1]
        measured = measure_alike(turns, num_batches, max_seconds)
        for trial, found in zip(trials, rates, strict=True):
            found.append(measured[trial])
    return rates


def median_shares(rates: Sequence[Sequence[float]]) -> list[float]:
    """Return the rate of each trial as a share of that of the first one, the median of all rounds.

    What slows the machine for a while slows all of a round, and falls out.

    Args:
        rates: From `play_final`.
    """
    return [
        median_ratio(one / first for one, first in zip(measured, rates[0], strict=True))
        for measured in rates
    ]
