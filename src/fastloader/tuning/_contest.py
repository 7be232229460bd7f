"""The best candidate so far, and others that are compared with it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from fastloader.errors import TuningError
from fastloader.tuning._candidate import Candidate
from fastloader.tuning._duel import Duel, Pace, fight
from fastloader.tuning._final import median_shares, play_final
from fastloader.tuning._limits import Limits
from fastloader.tuning._row import Row
from fastloader.tuning._subject import Subject
from fastloader.tuning._trial import Step, Trial

if TYPE_CHECKING:
    from fastloader.settings._settings import Workers

__all__ = ["AS_FAST", "ENOUGH", "Contest"]

ENOUGH = 1.05
"""A gain under this is not told from noise, nor worth another setting, nor gone on from."""
AS_FAST = 0.97
"""In the last comparison the one that takes the least memory wins from this share on."""
_NEAR = 0.85
"""Share of the best score from which a candidate is compared once more at the end."""
_MOST_FINALISTS = 3
_LARGE_SHARE = 0.1
"""Of the time that is left, for the measurement of two loaders with one worker."""
_BETTER = "better"


class Contest:
    """Keeps a trial of the best candidate, and lets others compete with it one by one.

    Args:
        subject: What is loaded.
        step: The consumer's work for a batch.
        limits: What may be tried.
        pace: How long it may take.
        final_pace: The same for the last comparison.
        note: Called for each candidate that is done with.

    **Processes:** at most two trials are alive at once, three in the last comparison; `close` ends
    the last one.
    """

    _holder: Trial
    _best: Row

    def __init__(
        self,
        subject: Subject,
        step: Step | None,
        limits: Limits,
        pace: Pace,
        final_pace: Pace,
        note: Callable[[], None],
    ) -> None:
        self._subject = subject
        self._step = step
        self._limits = limits
        self._pace = pace
        self._final_pace = final_pace
        self._note = note
        self.rows: list[Row] = []
        self._batch_bytes = 0
        self._start_seconds: dict[Workers, float] = {}  # of the slowest so far

    @property
    def best(self) -> Row:
        """The best so far; set by `begin`."""
        return self._best

    @property
    def is_hurried(self) -> bool:
        """Whether batches are so slow that few candidates can be measured."""
        seconds = self._pace.round_seconds(self._best.rate or 1.0, 1)
        return seconds > _LARGE_SHARE * self._pace.seconds_left

    def begin(self, candidate: Candidate, count_bytes: Callable[[Any], int]) -> None:
        """Measure the candidate that others are compared with.

        Args:
            candidate: To begin with.
            count_bytes: Tells the size of a batch.
        """
        trial = self._holder = Trial(self._subject, candidate, self._step)
        row = self._add(candidate)
        self._batch_bytes = count_bytes(trial.take_one())
        num_batches = max(1, candidate.num_workers)
        while True:
            measured = trial.measure(num_batches, self._pace.stretch_seconds)
            if self._pace.is_over or measured.seconds >= self._pace.stretch_seconds / 3:
                break
            num_batches *= 3
        row.rates.append(measured.rate)
        row.score = 1.0
        row.outcome = "where the search begins"
        self._best = row
        self._note()

    def compete(self, candidate: Candidate, needed: float) -> float:
        """Compare a candidate with the best, and put it in its place if it gains enough.

        Args:
            candidate: Which one.
            needed: Gain that is enough.

        Returns:
            Its rate over that of the best; 0 if it could not be measured.
        """
        row = self._add(candidate)
        row.has_price = needed > ENOUGH
        row.outcome = self._obstacle(candidate) or ""
        if not row.outcome:
            try:
                with self._trial(candidate) as trial:
                    self._compare(row, trial, needed)
            except TuningError as error:  # the best so far still works
                row.outcome = f"failed: {error.__cause__ or error}".partition("\n")[0]
        self._note()
        return row.gain or 0.0

    def decide(self) -> None:
        """Compare those that came near the best once more, all in turns."""
        finalists = self._finalists()
        most = max(row.candidate.num_workers for row in finalists)
        rate = self._best.rate or 1.0
        if len(finalists) == 1 or not self._final_pace.has_round(rate, most, len(finalists)):
            return
        with ExitStack() as stack:
            trials = [self._holder]
            trials += [stack.enter_context(self._trial(row.candidate)) for row in finalists[1:]]
            try:
                measured = play_final(trials, self._best.rate or 1.0, self._final_pace)
            except TuningError as error:  # what the search has found still holds
                self._best.outcome = f"the last comparison failed: {error.__cause__ or error}"
                return
            shares = median_shares(measured)
            for row, rates, share in zip(finalists, measured, shares, strict=True):
                row.rates += rates
                row.share = share / max(shares)
                row.outcome = f"{row.share:.2f} of the fastest in the last comparison"
            equals = [n for n, share in enumerate(shares) if share >= AS_FAST * max(shares)]
            winner = min(equals, key=lambda n: self._memory_bytes(finalists[n].candidate))
            if winner:
                self._holder.close()
                self._best, self._holder = finalists[winner], trials[winner]

    def _finalists(self) -> list[Row]:
        """Return the best, and after it those that came near it, as far as memory goes."""
        best = self._best
        most = max(row.score for row in self.rows if not row.has_price or row is best)
        near = [
            row
            for row in self.rows
            if row is not best and not row.has_price and row.score >= _NEAR * most
        ]
        finalists, used_bytes = [best], self._memory_bytes(best.candidate)
        for row in sorted(near, key=lambda row: -row.score):
            used_bytes += self._memory_bytes(row.candidate)
            if len(finalists) < _MOST_FINALISTS and used_bytes <= self._limits.memory_bytes:
                finalists.append(row)
        return finalists

    def close(self) -> None:
        """End the workers."""
        if hasattr(self, "_holder"):
            self._holder.close()

    def _obstacle(self, candidate: Candidate) -> str | None:
        rate, num_workers = self._best.rate or 1.0, candidate.num_workers
        seconds = self._pace.round_seconds(rate, num_workers)
        if num_workers:
            seconds += self._start_seconds.get(candidate.workers, 0.0)
        if seconds > self._pace.seconds_left:
            return "not tried: the budget is spent"
        needed = self._memory_bytes(candidate)
        if needed > self._limits.memory_bytes:
            return (
                f"not tried: would take {needed / 2**30:.1f} of "
                f"{self._limits.memory_bytes / 2**30:.1f} GiB"
            )
        return None

    def _memory_bytes(self, candidate: Candidate) -> int:
        return candidate.memory_bytes(self._batch_bytes, self._subject.pickled_bytes)

    def _compare(self, row: Row, trial: Trial, needed: float) -> None:
        best, holder = self._best, self._holder
        together = self._memory_bytes(best.candidate) + self._memory_bytes(row.candidate)
        is_tight = together > self._limits.memory_bytes
        duel = fight(holder, trial, best.rate or 1.0, self._pace, is_tight=is_tight)
        kind = row.candidate.workers
        self._start_seconds[kind] = max(self._start_seconds.get(kind, 0.0), trial.start_seconds)
        best.rates += duel.holder_rates
        row.rates += duel.rates
        row.gain, row.score = duel.gain, duel.gain * best.score
        row.outcome = self._judge(row, duel, needed)
        if row.outcome == _BETTER:
            self._best = row
            self._holder = trial
            holder.close()

    def _judge(self, row: Row, duel: Duel, needed: float) -> str:
        if duel.gain < needed:
            return "slower" if duel.gain < 1 / ENOUGH else "no gain worth it"
        if len(duel.ratios) < 2:
            return "no time to be sure"
        gives_up_order = self._best.candidate.in_order and not row.candidate.in_order
        if gives_up_order and not self._limits.any_order:
            return "faster, but batches come in any order: any_order=True takes it"
        return _BETTER

    @contextmanager
    def _trial(self, candidate: Candidate) -> Iterator[Trial]:
        trial = Trial(self._subject, candidate, self._step)
        try:
            yield trial
        finally:
            if trial is not self._holder:
                trial.close()

    def _add(self, candidate: Candidate) -> Row:
        row = Row(candidate)
        self.rows.append(row)
        return row
