"""Measures two places where batches may be made against each other, in turns."""

import math
import statistics
from collections.abc import Callable
from enum import Enum

__all__ = ["STRETCH_BATCHES", "Place", "PlaceDuel", "Stretch"]

SETTLING_SECONDS = 0.5
SETTLING_BATCHES = 32  # for workers to be taken on, and their memory to be touched
STRETCH_SECONDS = 0.1
STRETCH_BATCHES = 8
LONG_STRETCH_SECONDS = 1.0  # in which fewer batches are enough
SKIPPED_BATCHES = 8  # of a place that goes on, until as many as usual are under way
FEWEST_BATCHES = 3  # here, after a first one that finds its memory and caches cold
MOST_ROUNDS = 3
HOPELESS = 1.5  # times as long as by workers: measured no further


class Place(Enum):
    """Where a batch may be made; its value names it in a sentence."""

    HERE = "in this process"
    """When it is asked for."""
    AHEAD = "by a thread"
    """Of this process, before it is asked for."""
    WORKERS = "by workers"

    __hash__ = (
        object.__hash__
    )  # that of `Enum` is code of Python, run for each look into a table


class Stretch:
    """Batches one after the other, made in one place.

    Args:
        num_skipped: Batches that do not count, at its beginning.
    """

    def __init__(self, num_skipped: int = 0) -> None:
        self._num_skipped = num_skipped
        self.num_batches = 0
        self.seconds = self.making_seconds = self.cpu_seconds = 0.0
        self.last_seconds = math.inf
        """From the last batch but one to the last one."""

    def add(
        self, seconds: float, making_seconds: float, num_batches: int, cpu_seconds: float = 0.0
    ) -> None:
        """Add batches.

        Args:
            seconds: Since the batch before them.
            making_seconds: Of these, until the last of them was there.
            num_batches: How many.
            cpu_seconds: That all threads of this process have computed meanwhile.
        """
        self.last_seconds = seconds / num_batches
        if self._num_skipped:
            self._num_skipped -= 1
            return
        self.num_batches += num_batches
        self.seconds += seconds
        self.making_seconds += making_seconds * num_batches
        self.cpu_seconds += cpu_seconds

    @property
    def is_enough(self) -> bool:
        """Whether it is long enough to go by."""
        if self.num_batches >= STRETCH_BATCHES:
            return self.seconds >= STRETCH_SECONDS
        return self.num_batches >= FEWEST_BATCHES and self.seconds >= LONG_STRETCH_SECONDS

    @property
    def mean(self) -> float:
        """Seconds from batch to batch."""
        return self.seconds / self.num_batches

    @property
    def mean_making(self) -> float:
        """Of these, until a batch is there."""
        return self.making_seconds / self.num_batches

    @property
    def mean_cpu(self) -> float:
        """CPU seconds of this process from batch to batch."""
        return self.cpu_seconds / self.num_batches


class PlaceDuel:
    """Lets a place make batches until it is at full speed, and measures it and the best so far in turns.

    Args:
        best: Where batches were made so far.
        challenger: Is tried first.
        best_seconds: From batch to batch at `best`, as far as that is known, else 0.
        gain: Of the challenger, as a factor, with which it wins.
        budget_seconds: That batches of the challenger may take longer than those of `best`, all
            together, before it is given up.
        ends_early: Whether one stretch is enough where the challenger is far ahead.
    """

    def __init__(
        self,
        best: Place,
        challenger: Place,
        *,
        best_seconds: float,
        gain: float,
        budget_seconds: float,
        ends_early: bool,
    ) -> None:
        self.best = best
        self.challenger = challenger
        self.place = challenger
        """Where the next batch is to be made."""
        self.winner: Place | None = None
        """None until it is decided."""
        self.measured: dict[Place, Stretch] = {}
        """What was last made at each, as far as that was measured."""
        self.lost_seconds = 0.0
        """That batches of the challenger were waited for longer than those of `best` take, all together."""
        self._best_seconds = best_seconds
        self._stretch = Stretch()
        self._gain = gain
        self._budget_seconds = budget_seconds
        self._ends_early = ends_early
        self._rounds: list[float] = []  # time at `best` over that at the challenger's
        self._phase: Callable[[PlaceDuel], None] = PlaceDuel._settle

    def note(
        self, seconds: float, making_seconds: float, num_batches: int, cpu_seconds: float
    ) -> None:
        """Note batches that were made at `place`; see `Stretch.add`."""
        self._stretch.add(seconds, making_seconds, num_batches, cpu_seconds)
        if self.place is self.challenger and self._best_seconds:
            excess_seconds = seconds - self._best_seconds * num_batches
            self.lost_seconds += min(excess_seconds, making_seconds * num_batches)  # no pause
            if self.lost_seconds > self._budget_seconds:
                self.winner = self.best
                return
        self._phase(self)

    def __str__(self) -> str:
        if self.challenger not in self.measured:
            text = "Batches made {} took {:.3g} s longer than they would {}: they are made there again."
            return text.format(self.challenger.value, self.lost_seconds, self.best.value)
        text = "From batch to batch, step and all, it takes {:.3g} ms where they are made {}, and {:.3g} ms {}."
        challenger_seconds = self.measured[self.challenger].mean
        return text.format(
            1e3 * self._best_seconds,
            self.best.value,
            1e3 * challenger_seconds,
            self.challenger.value,
        )

    def _settle(self) -> None:
        stretch = self._stretch
        if self.challenger is Place.WORKERS:
            if stretch.seconds < SETTLING_SECONDS or stretch.num_batches < SETTLING_BATCHES:
                return
        elif stretch.num_batches < SKIPPED_BATCHES:
            return
        self._move(PlaceDuel._measure_challenger, self.challenger, 0)

    def _measure_challenger(self) -> None:
        stretch = self._stretch
        if not stretch.is_enough:
            return
        self.measured[self.challenger] = stretch
        if (
            self._ends_early
            and not self._rounds
            and self._best_seconds > HOPELESS * stretch.mean
        ):
            self.winner = self.challenger
            return
        num_skipped = 1 if self.best is Place.HERE else SKIPPED_BATCHES
        self._move(PlaceDuel._measure_best, self.best, num_skipped)

    def _measure_best(self) -> None:
        stretch = self._stretch
        if stretch.num_batches < FEWEST_BATCHES or stretch.seconds < STRETCH_SECONDS:
            return
        share = stretch.mean / self.measured[self.challenger].mean
        if share <= HOPELESS and not stretch.is_enough:
            return
        self.measured[self.best] = stretch
        self._best_seconds = stretch.mean
        self._rounds.append(share)
        if self._ends_early and share > HOPELESS:
            self.winner = self.challenger
        elif len(self._rounds) == MOST_ROUNDS:
            is_won = statistics.median(self._rounds) >= self._gain
            self.winner = self.challenger if is_won else self.best
        else:
            self._move(PlaceDuel._measure_challenger, self.challenger, SKIPPED_BATCHES)

    def _move(
        self, phase: Callable[["PlaceDuel"], None], place: Place, num_skipped: int
    ) -> None:
        self.place = place
        self._phase = phase
        self._stretch = Stretch(num_skipped)
