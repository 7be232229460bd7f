"""How many workers a pool should have, from how long its consumer waits for them."""

import math
from collections.abc import Callable, Mapping

__all__ = ["Staffing"]

LEAST_SECONDS = 0.05  # who waits for less than this gains nothing from a new process
PATIENT_SECONDS = 0.5  # so long at most until slow batches say something
FEWEST_BATCHES = 8  # says something sooner
WAIT_SHARE = 0.1
LEAST_GAIN = 1.05  # of the rate, by twice the workers
HOLD_SECONDS = 60.0  # after a growth that gained less; twice as long each time
IDLE_SECONDS = 30.0
IDLE_WAIT_SHARE = 0.01
BUSY_SHARE = 0.6  # of the time of those that stay when others go
ROOM_SHARE = 0.75  # of the CPUs, above which more workers only take turns on them


class Staffing:
    """Takes on workers while the consumer waits, and lets go of those that have long been idle.

    Twice as many are taken on each time, as long as that makes batches come faster: where memory
    or the consumer's own thread is the limit, more workers only take room. There are more than
    CPUs only where workers wait for most of their time, for a disk or a network, and leave the
    CPUs idle; waiting for a CPU that others have is not such waiting. Time between runs does not
    count.

    Args:
        most: Workers at most.
        now: Seconds, on any clock that only goes forward, as in all methods.
        num_cpus: For workers that compute; by default there are as many as workers.
        read_queued: Tells how many seconds each worker has waited for a CPU so far.
    """

    def __init__(
        self,
        most: int,
        now: float,
        *,
        num_cpus: int | None = None,
        read_queued: Callable[[], Mapping[int, float]] = dict,
    ) -> None:
        self._most = most
        self._read_queued = read_queued
        self._num_cpus = most if num_cpus is None else min(most, num_cpus)
        self._rate = 0.0  # before the latest growth, until that is judged
        self._num_before = 0  # workers then
        self._is_in_doubt = False  # whether it was of any use
        self._hold_seconds = HOLD_SECONDS
        self._held_until = now
        self._last = now
        self._recent = self._begin_span(now)
        self._long = _Span(now)

    def begin_run(self, now: float) -> None:
        """Leave out the time since the run before."""
        for span in (self._recent, self._long):
            span.start += now - self._last
        self._last = now

    def restart(self, now: float) -> None:
        """Count anew: workers that were taken on have begun to work."""
        self._last = now
        self._recent, self._long = self._begin_span(now), _Span(now)

    def note_wait(self, seconds: float) -> None:
        """Count time that the consumer has waited for a batch."""
        self._recent.waited += seconds
        self._long.waited += seconds

    def note_batch(self, busy_seconds: float, cpu_seconds: float) -> None:
        """Count a batch, the time that a worker spent on it, and how much of it computing."""
        self._recent.num_batches += 1
        self._recent.busy += busy_seconds
        self._recent.computed += cpu_seconds
        self._long.busy += busy_seconds

    def wanted(self, num_workers: int, now: float, *, may_grow: bool = True) -> int:
        """Return how many workers there should be, where there are `num_workers` at work.

        Args:
            num_workers: That have started.
            now: The time.
            may_grow: Whether the answer may be more of them.
        """
        self._last = now
        if may_grow and self._can_judge(num_workers, now):
            span, self._recent = self._recent, self._begin_span(now)
            wanted = self._judge(span, num_workers, now)
            if wanted != num_workers:
                return wanted
        if now - self._long.start >= IDLE_SECONDS:
            long, self._long = self._long, _Span(now)
            return long.needed(num_workers, now)
        return num_workers

    def _can_judge(self, num_workers: int, now: float) -> bool:
        """Return whether the time since the last judgement says something."""
        seconds = now - self._recent.start
        if seconds < LEAST_SECONDS or now < self._held_until:
            return False
        if num_workers >= self._num_cpus:
            # What they compute is only known of batches that are made.
            return self._recent.num_batches >= max(FEWEST_BATCHES, 4 * num_workers)
        return self._recent.num_batches >= FEWEST_BATCHES or seconds >= PATIENT_SECONDS

    def _judge(self, span: "_Span", num_workers: int, now: float) -> int:
        seconds = now - span.start
        rate_before, self._rate = self._rate, 0.0
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, False
        if span.waited <= WAIT_SHARE * seconds:
            return num_workers
        rate = span.num_batches / seconds
        if rate < LEAST_GAIN * rate_before:
            if not was_in_doubt:  # one span may have been an unlucky one
                self._rate, self._is_in_doubt = rate_before, True
                return num_workers
            self._held_until = now + self._hold_seconds
            self._hold_seconds *= 2
            # Those within the number of CPUs stay: others may have had the CPUs just now.
            return min(num_workers, max(self._num_before, self._num_cpus))
        room = self._num_cpus if num_workers < self._num_cpus else self._most
        if num_workers >= room or not self._has_room(span, num_workers, seconds):
            return num_workers
        self._rate, self._num_before = rate, num_workers
        return min(room, 2 * num_workers)

    def _begin_span(self, now: float) -> "_Span":
        may_exceed = self._most > self._num_cpus
        return _Span(now, self._read_queued() if may_exceed else {})

    def _has_room(self, span: "_Span", num_workers: int, seconds: float) -> bool:
        """Return whether more workers would find CPUs idle."""
        if num_workers < self._num_cpus:
            return True
        queued = sum(
            until_now - span.queued.get(worker, until_now)
            for worker, until_now in self._recent.queued.items()
        )
        # They are at work all the time, since the consumer waits for them.
        used = num_workers * span.computed / max(span.busy, 1e-9) + queued / seconds
        return used <= ROOM_SHARE * self._num_cpus


class _Span:
    """What happened since a time."""

    def __init__(self, start: float, queued: Mapping[int, float] | None = None) -> None:
        self.start = start
        self.queued = queued or {}
        self.waited = 0.0
        self.busy = 0.0
        self.computed = 0.0
        self.num_batches = 0

    def needed(self, num_workers: int, now: float) -> int:
        """Return how many of the workers would have been enough."""
        seconds = now - self.start
        if self.waited >= IDLE_WAIT_SHARE * seconds:
            return num_workers
        return max(1, min(num_workers, math.ceil(self.busy / seconds / BUSY_SHARE)))
