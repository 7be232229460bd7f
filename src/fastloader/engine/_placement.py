"""Where batches are made that may be made anywhere: wherever it is measured to be quickest."""

import logging
import math
import time
from typing import TYPE_CHECKING

from fastloader.engine._place_duel import STRETCH_BATCHES, Place, PlaceDuel, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Place", "Placement"]

logger = logging.getLogger("fastloader")

START_SECONDS = 0.02
"""About what it takes to start workers: a pass that is made in this time needs none."""

HANDING_SECONDS = 1e-4  # about what it takes to get a batch from a thread
SENDING_SECONDS = 2e-4  # about what it takes from another process
CLEAR_GAIN = 1.02  # here over workers, which leave the training loop's own core alone
LEAST_GAIN = (
    1.03  # of a thread over the time when a batch is asked for, and the other way round
)
LEAST_GAIN_OF_WORKERS = 1.1  # over both, as they take cores and room

TRIAL_SECONDS = {Place.HERE: 0.1, Place.AHEAD: 0.1, Place.WORKERS: 0.5}
"""About what it costs to try a place: buffers that are touched for the first time, processes."""

DEARER = 8.0
"""Times what a trial costs that was lost has to be at stake before the next one."""

HOLD_SECONDS = 15.0  # away from here, until both are measured again; twice as long each time

TINY_SECONDS = 2e-4  # from batch to batch, of which only some are looked at
LOOKED_AT = 8  # one of so many


class Placement:
    """Decides between the places by the time from one batch to the next, step and all.

    The first batches are made here. What another place could gain at most is known from them: it
    hides no more than the step of the loop, shares out no more than the making of the batches, and all
    CPUs together have as much to compute as before. A copy that keeps every CPU busy is as quick
    as it can be, so nothing else is tried. Where something could be gained, a trial begins once as much has been
    lost as it costs, ends where it costs more, and is the dearer the next time if it was in vain: so
    trials never take more than a share of what they may save.

    It lives as long as the loader, so that short passes are measured together.

    Args:
        num_cpus: That this process may use.
        read_computed: Tells for how many seconds this thread has computed.
        read_cpu: Tells for how many seconds all threads of this process have.
    """

    def __init__(
        self,
        num_cpus: int = 1,
        read_computed: "Callable[[], float]" = time.thread_time,
        read_cpu: "Callable[[], float]" = time.process_time,
    ) -> None:
        self._num_cpus = num_cpus
        self._read_computed = read_computed
        self._read_cpu = read_cpu
        self._computed_before: float | None = None  # until a pass begins
        self._cpu_before = 0.0
        self.place = Place.HERE
        """Where the next batch is to be made."""
        self._others: tuple[Place, ...] = (Place.WORKERS,)
        self._num_workers = 2
        self._phase: Callable[[Placement], None] = Placement._begin
        self._computing_seconds = 0.0  # for a batch, of the first ones
        self._stretch = Stretch()
        self._here: Stretch | None = None  # the last one that was long enough
        self._duel: PlaceDuel | None = None
        self._prices: dict[Place, float] = dict(TRIAL_SECONDS)
        self._lost: dict[Place, float] = {}
        self._held_seconds = 0.0
        self._hold_seconds = HOLD_SECONDS

    def begin_pass(self, others: "Sequence[Place]", num_workers: int) -> None:
        """Begin a pass; what is made before there are workers counts anew: each may take as long.

        Args:
            others: Places beside this process.
            num_workers: How many workers may compute at once.
        """
        self._num_workers = num_workers
        self._others = (*others,)
        self._cpu_before = self._read_cpu()  # what is computed between passes is no step
        involved = (
            {self.place} if self._duel is None else {self._duel.best, self._duel.challenger}
        )
        if not involved <= {Place.HERE, *others}:
            self._hold_at(Place.HERE)
        if self._computed_before is None or (
            self._phase is Placement._begin and not self._may_be_ahead
        ):
            self._stretch = Stretch()
            self._computed_before = self._read_computed()

    @property
    def needs_no_workers(self) -> bool:
        """Whether it is decided for now that batches are made in this process."""
        return self._phase in {Placement._hold, Placement._stay} and (
            self.place is not Place.WORKERS
        )

    @property
    def num_passed_over(self) -> int:
        """How many of the next batches need not be noted by themselves: to do so takes a microsecond."""
        is_idle = self._duel is None and self.place is Place.HERE
        return LOOKED_AT - 1 if is_idle and self._stretch.last_seconds < TINY_SECONDS else 0

    def may_finish_here(self, num_left: int) -> bool:
        """Return whether the rest of a pass takes less time than to start workers."""
        return num_left * self._computing_seconds <= START_SECONDS

    def leave_out(self, place: Place) -> None:
        """Try a place no more in this pass, and go on here if batches were to be made there."""
        self._others = tuple(other for other in self._others if other is not place)
        if self.place is place:
            self._hold_at(Place.HERE)

    def stay_here(self) -> None:
        """Make batches in this process from now on, and look no more."""
        self._hold_at(Place.HERE)
        self._phase = Placement._stay

    def note(self, seconds: float, making_seconds: float, num_batches: int = 1) -> None:
        """Note batches that were made where they were to be.

        Args:
            seconds: Since the batch before them.
            making_seconds: Of these, until the last of them was there.
            num_batches: How many.
        """
        cpu_seconds = 0.0
        if seconds >= TINY_SECONDS * num_batches:  # others have nothing to gain anywhere
            now = self._read_cpu()
            cpu_seconds, self._cpu_before = now - self._cpu_before, now
        if self._duel is None:
            self._stretch.add(seconds, making_seconds, num_batches, cpu_seconds)
        else:
            self._duel.note(seconds, making_seconds, num_batches, cpu_seconds)
        self._phase(self)

    @property
    def _may_be_ahead(self) -> bool:
        # Then a look decides between places that are all good enough: no single stretch does, as
        # others may have had the cores just then. Else workers are what the loader was to have.
        return Place.AHEAD in self._others

    def _begin(self) -> None:
        stretch = self._stretch
        if stretch.making_seconds < START_SECONDS:
            return  # to read the other clock takes a microsecond
        # While others have the cores everything takes longer, the start of workers too.
        computed = self._read_computed() - (self._computed_before or 0.0)
        computed = min(computed, stretch.making_seconds)
        if computed < START_SECONDS:
            return
        self._computing_seconds = computed / stretch.num_batches
        if self._may_be_ahead:
            # What was made so far found data and buffers cold, at times ten times as slow.
            self._hold_at(Place.HERE)
            return
        if stretch.num_batches >= STRETCH_BATCHES:  # a few are made in fresh memory
            self._here = stretch
        if self._here is None or self._gain_at_most(Place.WORKERS, stretch) > 0:
            self._challenge(Place.WORKERS, self._here, math.inf)
        else:
            self._hold_at(Place.HERE)

    def _hold(self) -> None:
        stretch = self._stretch
        if not stretch.is_enough:
            return
        self._stretch = Stretch()
        if self.place is Place.HERE:
            self._here = stretch
        self._held_seconds += stretch.seconds
        for place in (Place.HERE, *self._others):
            if place is self.place or self._here is None:
                continue
            lost = stretch.num_batches * self._gain_at_most(place, stretch)
            self._lost[place] = lost = self._lost.get(place, 0.0) + lost
            is_due = place is Place.HERE and self._held_seconds >= self._hold_seconds
            if is_due or lost >= self._prices[place]:
                budget_seconds = max(TRIAL_SECONDS[place], self._prices[place] / DEARER)
                self._challenge(place, stretch, budget_seconds)
                return

    def _gain_at_most(self, place: Place, stretch: Stretch) -> float:
        """Return what a place saves of each batch of a stretch, if it costs as little as it can."""
        least = self._least_seconds(place)
        return stretch.mean - least if stretch.mean > _gain_of(place) * least else 0.0

    def _least_seconds(self, place: Place) -> float:
        here = self._here
        if here is None:
            return 0.0
        if place is Place.HERE:
            return here.mean
        making_seconds, own_seconds = here.mean_making, HANDING_SECONDS
        if place is Place.WORKERS:
            making_seconds /= self._num_workers
            own_seconds = SENDING_SECONDS
        step_seconds = here.mean - here.mean_making
        computing_seconds = here.mean_cpu / self._num_cpus
        return max(step_seconds, making_seconds, computing_seconds) + own_seconds

    def _challenge(self, place: Place, best: Stretch | None, budget_seconds: float) -> None:
        gain = _gain_of(place)
        if not self._may_be_ahead:
            gain = 1 / CLEAR_GAIN if place is Place.WORKERS else CLEAR_GAIN
        self._duel = PlaceDuel(
            self.place,
            place,
            best_seconds=0.0 if best is None else best.mean,
            gain=gain,
            budget_seconds=budget_seconds,
            ends_early=not self._may_be_ahead,
        )
        self._phase = Placement._compare
        self.place = self._duel.place

    def _compare(self) -> None:
        duel = self._duel
        if duel is None:
            return
        self.place = duel.place
        if duel.winner is None:
            return
        logger.info("%s", duel)
        self._here = duel.measured.get(Place.HERE, self._here)
        loser = duel.best if duel.winner is duel.challenger else duel.challenger
        self._prices[loser] = DEARER * max(self._prices[loser], duel.lost_seconds)
        if duel.challenger is Place.HERE:
            self._hold_seconds *= 2
        if duel.winner is not duel.best:
            logger.info("From now on batches are made %s.", duel.winner.value)
        self._hold_at(duel.winner)

    def _hold_at(self, place: Place) -> None:
        self.place = place
        self._duel = None
        self._stretch = Stretch()
        self._held_seconds = 0.0
        self._lost = {}
        self._phase = Placement._hold

    def _stay(self) -> None:
        """Decide nothing any more."""


def _gain_of(place: Place) -> float:
    return LEAST_GAIN_OF_WORKERS if place is Place.WORKERS else LEAST_GAIN
