"""Where batches are made that may be made anywhere: wherever it is measured to be quickest."""

import logging
import math
import statistics
import time
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Place", "Placement"]

logger = logging.getLogger("fastloader")

START_SECONDS = 0.02
"""About what it takes to start workers: a pass that is made in this time needs none."""

SETTLING_SECONDS = 0.5
SETTLING_BATCHES = 32  # for workers to be taken on, and their memory to be touched
STRETCH_SECONDS = 0.1
STRETCH_BATCHES = 8
LONG_STRETCH_SECONDS = 1.0  # in which fewer batches are enough
SKIPPED_BATCHES = 8  # of a place that goes on, until as many as usual are under way
FEWEST_BATCHES = 3  # here, after a first one that finds its memory and caches cold
MOST_ROUNDS = 3

HANDING_SECONDS = 1e-4  # about what it takes to get a batch from a thread
SENDING_SECONDS = 2e-4  # about what it takes from another process
CLEAR_GAIN = 1.02  # here over workers, which leave the training loop's own core alone
LEAST_GAIN = 1.03  # of a thread over the time when a batch is asked for
LEAST_GAIN_OF_WORKERS = 1.1  # over both, as they take cores and room
HOPELESS = 1.5  # times as long as by workers: not tried again
DEARER = 1.5  # times as long as when it was decided
HOLD_SECONDS = 15.0  # after a decision; twice as long each time
STARTS_APART = 200  # at least, in times that workers take to start, as the loop waits for them
STARTS_APART_IF_DEARER = 20

TINY_SECONDS = 2e-4  # from batch to batch, of which only some are looked at
LOOKED_AT = 8  # one of so many


class Place(Enum):
    """Where a batch may be made; its value names it in a sentence."""

    HERE = "in this process"
    """When it is asked for."""
    AHEAD = "by a thread"
    """Of this process, before it is asked for."""
    WORKERS = "by workers"


class Placement:
    """Decides between the places by the time from one batch to the next, step and all.

    The first batches are made here, for as long as workers would take to start. Then each other
    place that could gain something by what is known of batches and step has to beat the best one so
    far: it makes batches until it is at full speed. If it is not clearly quicker both are measured
    in turns. Whoever wins stays, until it is time to look again or batches made here take
    longer than they did.

    It lives as long as the loader, so that short passes are measured together.

    Args:
        read_computed: Tells for how many seconds this thread has computed.
    """

    def __init__(self, read_computed: "Callable[[], float]" = time.thread_time) -> None:
        self._read_computed = read_computed
        self._computed_before = read_computed()
        self.place = Place.HERE
        """Where the next batch is to be made."""
        self._others: tuple[Place, ...] = (Place.WORKERS,)
        self._num_workers = 2
        self._phase: Callable[[Placement], None] = Placement._begin
        self._is_warm = False
        self._hold_seconds = HOLD_SECONDS
        self._held_seconds = 0.0
        self._start_seconds = 0.0  # of workers, until their first batch
        self._here_seconds = 0.0  # from batch to batch, when that was last measured
        self._making_seconds = 0.0  # of that
        self._computing_seconds = 0.0  # of that, for the first batches
        self._best = self._challenger = Place.HERE
        self._best_seconds = 0.0
        self._challenger_seconds = 0.0
        self._untried: deque[Place] = deque()
        self._rounds: list[float] = []  # time at the best place over that at its challenger's
        self._stretch = _Stretch()

    def begin_pass(self, others: "Sequence[Place]", num_workers: int) -> None:
        """Begin a pass; what is made before there are workers counts anew: each may take as long.

        Args:
            others: Places beside this process, in the order in which they are to be tried.
            num_workers: How many workers there may be.
        """
        self._num_workers = num_workers
        if (*others,) != self._others:
            self._others = (*others,)
            if self.place not in {Place.HERE, *others}:
                self._look()
        if self._phase is Placement._begin and Place.AHEAD not in others:
            self._stretch = _Stretch()
            self._computed_before = self._read_computed()

    @property
    def needs_no_workers(self) -> bool:
        """Whether it is decided for now that batches are made in this process."""
        return self._phase is Placement._hold and self.place is not Place.WORKERS

    @property
    def num_passed_over(self) -> int:
        """How many of the next batches need not be noted by themselves: to do so takes a microsecond."""
        is_idle = self._phase in {Placement._begin, Placement._hold}
        if is_idle and self.place is Place.HERE and self._stretch.last_seconds < TINY_SECONDS:
            return LOOKED_AT - 1
        return 0

    def may_finish_here(self, num_left: int) -> bool:
        """Return whether the rest of a pass takes less time than to start workers."""
        return num_left * self._computing_seconds <= START_SECONDS

    def leave_out(self, place: Place) -> None:
        """Try a place no more in this pass, and go elsewhere if batches were to be made there."""
        self._others = tuple(other for other in self._others if other is not place)
        if self.place is place:
            self._look()

    def stay_here(self) -> None:
        """Make batches in this process from now on, and look no more."""
        self._best = Place.HERE
        self._hold_seconds = math.inf
        self._decide()

    def note(self, seconds: float, making_seconds: float, num_batches: int = 1) -> None:
        """Note batches that were made where they were to be.

        Args:
            seconds: Since the batch before them.
            making_seconds: Of these, until the last of them was there.
            num_batches: How many.
        """
        self._stretch.add(seconds, making_seconds, num_batches)
        self._phase(self)

    def _begin(self) -> None:
        stretch = self._stretch
        if stretch.making_seconds < START_SECONDS:
            return  # to read the other clock takes a microsecond
        # While others have the cores everything takes longer, the start of workers too.
        computed = min(self._read_computed() - self._computed_before, stretch.making_seconds)
        if computed < START_SECONDS:
            return
        if self._may_be_ahead and not self._is_warm:
            # What was made so far found data and buffers cold, at times ten times as slow.
            self._is_warm = True
            self._computed_before = self._read_computed()
            self._move(Placement._begin, Place.HERE)
            return
        self._computing_seconds = computed / stretch.num_batches
        self._making_seconds = stretch.mean_making
        if stretch.num_batches >= STRETCH_BATCHES:  # a few are made in fresh memory
            self._here_seconds = stretch.mean
        self._look()

    def _look(self) -> None:
        """Begin to compare all places with this process."""
        self._best, self._best_seconds = Place.HERE, self._here_seconds
        self._untried = deque(self._others)
        self._challenge()

    def _challenge(self) -> None:
        while self._untried:
            self._challenger = self._untried.popleft()
            # Of where batches are made now the decision was made at another time.
            if self._challenger is self.place or self._is_worth_a_try(self._challenger):
                self._rounds.clear()
                self._move(Placement._settle, self._challenger)
                return
        self._decide()

    def _is_worth_a_try(self, place: Place) -> bool:
        """Return whether a place would gain something if it cost as little as it can."""
        if not self._best_seconds or not self._here_seconds:
            return True
        step_seconds = self._here_seconds - self._making_seconds
        making_seconds, own_seconds, gain = self._making_seconds, HANDING_SECONDS, LEAST_GAIN
        if place is Place.WORKERS:
            making_seconds /= self._num_workers
            own_seconds, gain = SENDING_SECONDS, LEAST_GAIN_OF_WORKERS
        least = max(step_seconds, making_seconds) + own_seconds
        return gain * least < self._best_seconds

    def _settle(self) -> None:
        stretch = self._stretch
        if self._challenger is Place.WORKERS:
            if stretch.num_batches == 1:
                self._start_seconds = max(self._start_seconds, stretch.making_seconds)
            if stretch.seconds < SETTLING_SECONDS or stretch.num_batches < SETTLING_BATCHES:
                return
        elif stretch.num_batches < SKIPPED_BATCHES:
            return
        self._move(Placement._measure_challenger, self._challenger)

    def _measure_challenger(self) -> None:
        stretch = self._stretch
        if not stretch.is_enough:
            return
        self._challenger_seconds = stretch.mean
        is_hopeless = not self._rounds and self._best_seconds > HOPELESS * stretch.mean
        if is_hopeless and not self._may_be_ahead:
            self._end_duel(is_won=True)
        else:
            num_skipped = 1 if self._best is Place.HERE else SKIPPED_BATCHES
            self._move(Placement._measure_best, self._best, num_skipped)

    def _measure_best(self) -> None:
        stretch = self._stretch
        if stretch.num_batches < FEWEST_BATCHES or stretch.seconds < STRETCH_SECONDS:
            return
        share = stretch.mean / self._challenger_seconds
        if share <= HOPELESS and not stretch.is_enough:
            return
        self._best_seconds = stretch.mean
        if self._best is Place.HERE:
            self._here_seconds = stretch.mean
            self._making_seconds = stretch.mean_making
        self._rounds.append(share)
        if share > HOPELESS and not self._may_be_ahead:
            self._end_duel(is_won=True)
        elif len(self._rounds) == MOST_ROUNDS:
            self._end_duel(is_won=statistics.median(self._rounds) >= self._gain_to_win)
        else:
            self._move(Placement._measure_challenger, self._challenger, SKIPPED_BATCHES)

    @property
    def _may_be_ahead(self) -> bool:
        # Then a look decides between places that are all good enough: no single stretch does, as
        # others may have had the cores just then.
        return Place.AHEAD in self._others

    @property
    def _gain_to_win(self) -> float:
        if not self._may_be_ahead:
            return 1 / CLEAR_GAIN
        return LEAST_GAIN_OF_WORKERS if self._challenger is Place.WORKERS else LEAST_GAIN

    def _end_duel(self, *, is_won: bool) -> None:
        logger.info(
            "From batch to batch, step and all, it takes %.3g ms where they are made %s, and "
            "%.3g ms %s.",
            1e3 * self._best_seconds,
            self._best.value,
            1e3 * self._challenger_seconds,
            self._challenger.value,
        )
        if is_won:
            self._best, self._best_seconds = self._challenger, self._challenger_seconds
        self._challenge()

    def _decide(self) -> None:
        self._untried.clear()
        self._held_seconds = 0.0
        if self._best is not self.place:
            logger.info("From now on batches are made %s.", self._best.value)
        self._move(Placement._hold, self._best)

    def _hold(self) -> None:
        if self._stretch.seconds < SETTLING_SECONDS or self._hold_seconds == math.inf:
            return
        stretch, self._stretch = self._stretch, _Stretch()
        self._held_seconds += stretch.seconds
        is_here = self.place is Place.HERE
        is_dearer = is_here and stretch.mean_making > DEARER * self._making_seconds
        num_starts = STARTS_APART_IF_DEARER if is_dearer else STARTS_APART
        if is_here and self._held_seconds < num_starts * self._start_seconds:
            return
        if is_dearer or self._held_seconds >= self._hold_seconds:
            self._hold_seconds *= 2
            if is_here:
                self._here_seconds, self._making_seconds = stretch.mean, stretch.mean_making
            self._look()

    def _move(
        self, phase: "Callable[[Placement], None]", place: Place, num_skipped: int = 0
    ) -> None:
        self.place = place
        self._phase = phase
        self._stretch = _Stretch(num_skipped)


class _Stretch:
    """Batches one after the other, made in one place."""

    def __init__(self, num_skipped: int = 0) -> None:
        self._num_skipped = num_skipped
        self.num_batches = 0
        self.seconds = self.making_seconds = 0.0
        self.last_seconds = float("inf")
        """From the last batch but one to the last one."""

    def add(self, seconds: float, making_seconds: float, num_batches: int) -> None:
        self.last_seconds = seconds / num_batches
        if self._num_skipped:
            self._num_skipped -= 1
            return
        self.num_batches += num_batches
        self.seconds += seconds
        self.making_seconds += making_seconds * num_batches

    @property
    def is_enough(self) -> bool:
        if self.num_batches >= STRETCH_BATCHES:
            return self.seconds >= STRETCH_SECONDS
        return self.num_batches >= FEWEST_BATCHES and self.seconds >= LONG_STRETCH_SECONDS

    @property
    def mean(self) -> float:
        return self.seconds / self.num_batches

    @property
    def mean_making(self) -> float:
        return self.making_seconds / self.num_batches
