"""A candidate of a search, and what became of it."""

import statistics
from dataclasses import dataclass, field

from fastloader.tuning._candidate import Candidate

__all__ = ["Row"]


@dataclass(slots=True)
class Row:
    """One candidate that was tried, or would have been."""

    candidate: Candidate
    rates: list[float] = field(default_factory=list)
    """Batches per second, each time it was measured."""
    gain: float | None = None
    """Its rate over that of the best before it."""
    score: float = 0.0
    """Its rate over that of the candidate that the search began with, by all gains between."""
    share: float | None = None
    """Its rate over that of the fastest in the last comparison, if it took part."""
    has_price: bool = False
    """Whether it gives up something, and so is only taken for a large gain."""
    outcome: str = ""
    """What became of it."""

    def gain_over(self, other: "Row") -> float | None:
        """Return its rate over that of another one, as they were compared in turns.

        Args:
            other: Of the same search.

        Returns:
            None if one of them was not measured.
        """
        if self.share and other.share:
            return self.share / other.share
        return self.score / other.score if self.score and other.score else None

    @property
    def rate(self) -> float | None:
        """Median of `rates`."""
        return statistics.median(self.rates) if self.rates else None
