"""How many workers a pool should have, from how long its consumer waits for them."""

import math

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


class Staffing:
    """Takes on workers while the consumer waits, and lets go of those that have long been idle.

    Twice as many are taken on each time, as long as that makes batches come faster: where memory
    or the consumer's own thread is the limit, more workers only take room. Time between runs does
    not count.

    Args:
        most: Workers at most.
        now: Seconds, on any clock that only goes forward, as in all methods.
    """

    def __init__(self, most: int, now: float) -> None:
        self._most = most
        self._rate = 0.0  # before the latest growth
        self._hold_seconds = HOLD_SECONDS
        self._held_until = now
        self._last = now
        self._recent = _Span(now)
        self._long = _Span(now)

    def begin_run(self, now: float) -> None:
        """Leave out the time since the run before."""
        for span in (self._recent, self._long):
            span.start += now - self._last
        self._last = now

    def restart(self, now: float) -> None:
        """Count anew: workers that were taken on have begun to work."""
        self._recent, self._long = _Span(now), _Span(now)

    def note_wait(self, seconds: float) -> None:
        """Count time that the consumer has waited for a batch."""
        self._recent.waited += seconds
        self._long.waited += seconds

    def note_batch(self, busy_seconds: float) -> None:
        """Count a batch, and the time that a worker spent on it."""
        self._recent.num_batches += 1
        self._long.busy += busy_seconds

    def wanted(self, num_workers: int, now: float) -> int:
        """Return how many workers there should be, where there are `num_workers` at work."""
        self._last = now
        if num_workers < self._most and self._is_short(now):
            return min(self._most, 2 * num_workers)
        if now - self._long.start >= IDLE_SECONDS:
            span, self._long = self._long, _Span(now)
            return span.needed(num_workers, now)
        return num_workers

    def _is_short(self, now: float) -> bool:
        seconds = now - self._recent.start
        if seconds < LEAST_SECONDS or now < self._held_until:
            return False
        if self._recent.num_batches < FEWEST_BATCHES and seconds < PATIENT_SECONDS:
            return False
        span, self._recent = self._recent, _Span(now)
        if span.waited <= WAIT_SHARE * seconds:
            return False
        rate = span.num_batches / seconds
        gained = rate >= LEAST_GAIN * self._rate
        self._rate = rate if gained else 0.0
        if not gained:
            self._held_until = now + self._hold_seconds
            self._hold_seconds *= 2
        return gained


class _Span:
    """What happened since a time."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.waited = 0.0
        self.busy = 0.0
        self.num_batches = 0

    def needed(self, num_workers: int, now: float) -> int:
        """Return how many of the workers would have been enough."""
        seconds = now - self.start
        if self.waited >= IDLE_WAIT_SHARE * seconds:
            return num_workers
        return max(1, min(num_workers, math.ceil(self.busy / seconds / BUSY_SHARE)))
