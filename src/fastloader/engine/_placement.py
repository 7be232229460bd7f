"""Where batches are made that may be made anywhere: here or by workers, whichever is measured to be quicker."""

import logging
import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Placement"]

logger = logging.getLogger("fastloader")

START_SECONDS = 0.02
"""About what it takes to start workers: a pass that is made in this time needs none."""

SETTLING_SECONDS = 0.5
SETTLING_BATCHES = 32  # for workers to be taken on, and their memory to be touched
STRETCH_SECONDS = 0.1
STRETCH_BATCHES = 8
SKIPPED_BATCHES = 8  # of workers that go on, until as many as usual are under way
FEWEST_BATCHES = 3  # here, after a first one that finds its memory and caches cold
MOST_ROUNDS = 3

CLEAR_GAIN = 1.02  # here over workers, which leave the training loop's own core alone
HOPELESS = 1.5  # as long as with workers: not tried again
DEARER = 1.5  # as long as when it was decided
HOLD_SECONDS = 15.0  # after a decision; twice as long each time
STARTS_APART = 200  # at least, in times that workers take to start, as the loop waits for them
STARTS_APART_IF_DEARER = 20


class Placement:
    """Decides between here and workers by the time from one batch to the next, step and all.

    The first batches are made here, for as long as workers would take to start. Then workers make
    them, until there are as many as are needed. If these are not clearly quicker both are measured in
    turns. Whoever wins stays, until it is time to look again or batches made here take longer
    than they did.

    It lives as long as the loader, so that short passes are measured together.

    Args:
        read_computed: Tells for how many seconds this thread has computed.
    """

    def __init__(self, read_computed: "Callable[[], float]" = time.thread_time) -> None:
        self._read_computed = read_computed
        self._computed_before = read_computed()
        self.is_here = True
        """Whether the next batch is to be made here."""
        self.is_settled_here = False
        """Whether workers are of no use for now."""
        self._phase: Callable[[Placement], None] = Placement._begin
        self._hold_seconds = HOLD_SECONDS
        self._held_seconds = 0.0
        self._start_seconds = 0.0  # of workers, until their first batch
        self._here_seconds = 0.0  # from batch to batch, when that was last measured
        self._making_seconds = 0.0  # of that
        self._computing_seconds = 0.0  # of that, for the first batches
        self._workers_seconds = 0.0
        self._rounds: list[float] = []  # time here over that with workers
        self._stretch = _Stretch()

    def begin_pass(self) -> None:
        """Count what is made before there are workers anew: each pass may take as long."""
        if self._phase is Placement._begin:
            self._stretch = _Stretch()
            self._computed_before = self._read_computed()

    def may_finish_here(self, num_left: int) -> bool:
        """Return whether the rest of a pass takes less time than to start workers.

        Args:
            num_left: Batches.
        """
        return num_left * self._computing_seconds <= START_SECONDS

    def note(self, seconds: float, making_seconds: float) -> None:
        """Note a batch that was made where it was to be.

        Args:
            seconds: Since the batch before.
            making_seconds: Of these, until the batch was there.
        """
        self._stretch.add(seconds, making_seconds)
        self._phase(self)

    def _begin(self) -> None:
        stretch = self._stretch
        if stretch.making_seconds < START_SECONDS:
            return  # to read the other clock takes a microsecond
        # While others have the cores everything takes longer, the start of workers too.
        computed = min(self._read_computed() - self._computed_before, stretch.making_seconds)
        if computed < START_SECONDS:
            return
        self._computing_seconds = computed / stretch.num_batches
        self._making_seconds = stretch.mean_making
        if stretch.num_batches >= STRETCH_BATCHES:  # a few are made in fresh memory
            self._here_seconds = stretch.mean
        self._move(Placement._settle, is_here=False)

    def _settle(self) -> None:
        stretch = self._stretch
        if stretch.num_batches == 1:
            self._start_seconds = max(self._start_seconds, stretch.making_seconds)
        if stretch.seconds < SETTLING_SECONDS or stretch.num_batches < SETTLING_BATCHES:
            return
        self._rounds.clear()
        self._move(Placement._measure_workers, is_here=False)

    def _measure_workers(self) -> None:
        if not self._stretch.is_enough:
            return
        self._workers_seconds = self._stretch.mean
        if not self._rounds and self._here_seconds > HOPELESS * self._workers_seconds:
            self._decide(is_here=False)
        else:
            self._move(Placement._measure_here, is_here=True, num_skipped=1)

    def _measure_here(self) -> None:
        stretch = self._stretch
        if stretch.num_batches < FEWEST_BATCHES or stretch.seconds < STRETCH_SECONDS:
            return
        share = stretch.mean / self._workers_seconds
        if share <= HOPELESS and not stretch.is_enough:
            return
        self._here_seconds = stretch.mean
        self._making_seconds = stretch.mean_making
        self._rounds.append(share)
        if share > HOPELESS:
            self._decide(is_here=False)
        elif len(self._rounds) == MOST_ROUNDS:
            self._decide(is_here=statistics.median(self._rounds) * CLEAR_GAIN < 1)
        else:
            self._move(Placement._measure_workers, is_here=False, num_skipped=SKIPPED_BATCHES)

    def _decide(self, *, is_here: bool) -> None:
        self.is_settled_here = is_here
        self._held_seconds = 0.0
        logger.info(
            "From now on batches are made %s: %.3g ms from one to the next in this process, step "
            "and all, and %.3g with workers.",
            "in this process" if is_here else "by workers",
            1e3 * self._here_seconds,
            1e3 * self._workers_seconds,
        )
        self._move(Placement._hold, is_here=is_here)

    def _hold(self) -> None:
        if self._stretch.seconds < SETTLING_SECONDS:
            return
        stretch, self._stretch = self._stretch, _Stretch()
        self._held_seconds += stretch.seconds
        is_dearer = self.is_here and stretch.mean_making > DEARER * self._making_seconds
        num_starts = STARTS_APART_IF_DEARER if is_dearer else STARTS_APART
        if self.is_here and self._held_seconds < num_starts * self._start_seconds:
            return
        if is_dearer or self._held_seconds >= self._hold_seconds:
            self._hold_seconds *= 2
            self.is_settled_here = False
            self._move(Placement._settle, is_here=False)

    def _move(
        self, phase: "Callable[[Placement], None]", *, is_here: bool, num_skipped: int = 0
    ) -> None:
        self.is_here = is_here
        self._phase = phase
        self._stretch = _Stretch(num_skipped)


class _Stretch:
    """Batches one after the other, made in one place."""

    def __init__(self, num_skipped: int = 0) -> None:
        self._num_skipped = num_skipped
        self.num_batches = 0
        self.seconds = self.making_seconds = 0.0

    def add(self, seconds: float, making_seconds: float) -> None:
        if self._num_skipped:
            self._num_skipped -= 1
            return
        self.num_batches += 1
        self.seconds += seconds
        self.making_seconds += making_seconds

    @property
    def is_enough(self) -> bool:
        return self.num_batches >= STRETCH_BATCHES and self.seconds >= STRETCH_SECONDS

    @property
    def mean(self) -> float:
        return self.seconds / self.num_batches

    @property
    def mean_making(self) -> float:
        return self.making_seconds / self.num_batches
