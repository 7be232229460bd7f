"""Chooses between ways of doing the same thing by how long they took lately."""

from dataclasses import dataclass

__all__ = ["Quickest"]

TRIAL_SHARE = 0.01
"""Of the time spent, for trying again what was slower."""


@dataclass
class _Way:
    pace: float | None = None
    """Seconds for a unit of work, lately; None before the first time."""
    trial_seconds: float = 0.0
    """What one more trial would take."""
    spent_seconds: float = 0.0
    """On other ways since the last trial."""


class Quickest:
    """Knows which of several ways is the quickest now, on a machine that others use too.

    Each is tried once. From then on the quickest is taken, and the others are tried again
    every now and then: seldom where they were slow.

    **Threads:** any; where several use it at once, an entry may be lost.

    Args:
        num_ways: How many there are to choose from.
    """

    def __init__(self, num_ways: int) -> None:
        self._ways = [_Way() for _ in range(num_ways)]
        self._best = 0

    def choose(self) -> int:
        """Return the number of the way to take now."""
        for number, way in enumerate(self._ways):
            if way.pace is None or way.spent_seconds * TRIAL_SHARE > way.trial_seconds:
                return number
        return self._best

    def note(self, number: int, seconds: float, amount: float) -> None:
        """Take note of how long it took.

        Args:
            number: Of the way that was taken.
            seconds: How long.
            amount: Of work; above 0.
        """
        way, pace = self._ways[number], seconds / amount
        # A trial says how it is now; of what is done all the time, one time says little.
        is_usual = number == self._best and way.pace is not None
        way.pace = (pace + (way.pace or 0.0)) / 2 if is_usual else pace
        way.trial_seconds = seconds
        for other in self._ways:
            other.spent_seconds = 0.0 if other is way else other.spent_seconds + seconds
        known = [n for n, one in enumerate(self._ways) if one.pace is not None]
        self._best = min(known, key=lambda n: self._ways[n].pace or 0.0)
