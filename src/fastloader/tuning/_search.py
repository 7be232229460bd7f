"""From one candidate to a better one, option by option."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fastloader.settings._settings import Workers
from fastloader.tuning._candidate import Candidate
from fastloader.tuning._contest import ENOUGH, Contest
from fastloader.tuning._limits import Limits

__all__ = ["Search"]

_WORTH_A_COST = 1.10
"""Gain for which something is given up."""


class Search:
    """Climbs from the plainest setting, one option after the other.

    Args:
        contest: Has begun with that setting.
        fixed: Options that the caller has decided.
        limits: What may be tried.
    """

    def __init__(self, contest: Contest, fixed: Mapping[str, Any], limits: Limits) -> None:
        self._contest = contest
        self._fixed = fixed
        self._limits = limits

    def run(self, automatic: Candidate) -> None:
        """Try one option after the other, as long as the budget lasts.

        Args:
            automatic: What a loader chooses by itself; the last to be compared, within the limits.
        """
        self._climb("processes")
        self._climb("threads")
        self._deepen()
        for change in self._changes():
            self._contest.compete(*change)
        is_new = automatic not in {row.candidate for row in self._contest.rows}
        if is_new and automatic.num_workers <= self._most(automatic.workers):
            self._contest.compete(automatic, ENOUGH)
        self._contest.decide()

    def _most(self, kind: Workers) -> int:
        return self._limits.max_threads if kind == "threads" else self._limits.max_workers

    def _climb(self, kind: Workers) -> None:
        """Take more and more workers of a kind, as long as each doubling gains."""
        if self._fixed.get("workers", kind) != kind:
            return
        most = self._most(kind)
        numbers = (
            [self._fixed["num_workers"]] if "num_workers" in self._fixed else _doublings(most)
        )
        if self._contest.is_hurried and len(numbers) > 1:
            del numbers[0]  # one worker seldom gains much, and the time is better spent on more
        previous = 0.0
        for number in numbers:
            current = self._contest.best.candidate
            # One thread tells little of what threads are worth. They may be fewer than processes,
            # which need some time to send their batches.
            least = max(current.num_workers // 2, min(2, most)) if kind == "threads" else 1
            if number < least:
                continue
            candidate = self._with_workers(current, kind, number)
            if candidate == current:
                continue
            gain = self._contest.compete(candidate, ENOUGH)
            # Not even if each doubling doubled the rate would they catch up.
            is_hopeless = gain * most / number < ENOUGH
            if is_hopeless or gain < ENOUGH * previous:
                return
            previous = 1.0 if self._contest.best.candidate == candidate else gain

    def _with_workers(self, current: Candidate, kind: Workers, number: int) -> Candidate:
        fixed = self._fixed
        usual = "shared" if self._limits.has_memory_files else "torch"
        return replace(
            current,
            num_workers=number,
            workers=kind,
            prefetch_factor=fixed.get("prefetch_factor") or current.prefetch_factor or 2,
            transport=fixed.get("transport", usual),
            in_order=fixed.get("in_order", True),
        )

    def _deepen(self) -> None:
        """Make more batches ahead, as long as each doubling gains."""
        if "prefetch_factor" in self._fixed:
            return
        for number in (4, 8):
            current = self._contest.best.candidate
            if current.num_workers == 0:
                return
            if self._contest.compete(replace(current, prefetch_factor=number), ENOUGH) < ENOUGH:
                return

    def _changes(self) -> Iterator[tuple[Candidate, float]]:
        """Yield what differs in one option from the best, and the gain that it must have."""
        fixed, limits = self._fixed, self._limits
        current = self._contest.best.candidate
        has_processes = current.num_workers > 0 and current.workers == "processes"
        if has_processes and limits.has_memory_files and "transport" not in fixed:
            yield replace(current, transport="torch"), _WORTH_A_COST
        current = self._contest.best.candidate
        if limits.can_pin and "pin_memory" not in fixed:
            yield replace(current, pin_memory=not current.pin_memory), ENOUGH
        current = self._contest.best.candidate
        if current.num_workers > 1 and current.in_order and "in_order" not in fixed:
            yield replace(current, in_order=False), _WORTH_A_COST


def _doublings(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, up to and with `most`."""
    numbers = [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]
    return numbers if not numbers or numbers[-1] == most else [*numbers, most]
