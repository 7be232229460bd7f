"""How far each source of known length is: passes that begin, and items left in them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastloader.mixing._mixture import Mixture
from fastloader.mixing._schedule import Schedule, planned_turns
from fastloader.mixing._turns import Turns

__all__ = ["PassCounter", "Passes", "count_turns"]


class PassCounter:
    """Numbers the passes over each source through all epochs: each is an epoch of its source.

    Numbers only go up, so no pass repeats the order and the random draws of an earlier one.
    Where no source begins again within an epoch, they are those of the epochs.
    """

    def __init__(self, num_sources: int) -> None:
        self._next = [0] * num_sources
        self._first = list(self._next)
        self._epoch = -1

    def of_epoch(self, epoch: int) -> "PassCounter":
        """Return the counter of an epoch; this one stays as it is.

        It counts on in a later epoch than the last, and again in the same or an earlier one.
        """
        counter = PassCounter(len(self._next))
        if epoch > self._epoch:
            counter._first = [max(number, epoch) for number in self._next]
        elif epoch < self._epoch:
            counter._first = [epoch] * len(self._next)
        else:
            counter._first = self._first
        counter._next = list(counter._first)
        counter._epoch = epoch
        return counter

    def begin_pass(self, source: int) -> int:
        """Return the number of the pass that begins."""
        number = self._next[source]
        self._next[source] += 1
        return number

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that come next."""
        return {"epoch": self._epoch, "first": list(self._first), "next": list(self._next)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Count on from a state."""
        self._epoch = state["epoch"]
        self._first = list(state["first"])
        self._next = list(state["next"])


class Passes:
    """The passes of one epoch over sources of known lengths.

    Args:
        lengths: Items in one pass of each source.
        counter: Numbers the passes.
    """

    def __init__(self, lengths: Sequence[int], counter: PassCounter) -> None:
        self._lengths = lengths
        self._counter = counter
        self._room = [0] * len(lengths)
        self._numbers: list[int | None] = [None] * len(lengths)

    def draw(self, schedule: Schedule, limit: int) -> Turns:
        """Take turns, and an item of its source for each.

        Args:
            schedule: Whose turns to take.
            limit: The most to take.

        Returns:
            Sources, within one pass of each; none at the end of the epoch.
        """
        turns = schedule.take_turns(limit, self._room)
        if not len(turns):
            source = self._take_turn(schedule)
            turns = np.array([] if source is None else [source], np.int64)
        for source, count in enumerate(np.bincount(turns).tolist()):
            self._room[source] -= count
        return turns

    def _take_turn(self, schedule: Schedule) -> int | None:
        while (source := schedule.take_turn()) is not None:
            if self._numbers[source] is not None and not self._room[source]:
                self._numbers[source] = None
                if not schedule.run_out(source):
                    continue
            if self._numbers[source] is None:
                self._numbers[source] = self._counter.begin_pass(source)
                self._room[source] = self._lengths[source]
            break
        return source

    def place(self, source: int) -> tuple[int, int]:
        """Return the number of the pass over a source, and the items drawn from it.

        Args:
            source: One that has been drawn from.
        """
        number = self._numbers[source]
        return 0 if number is None else number, self._lengths[source] - self._room[source]

    def state_dict(self) -> dict[str, Any]:
        """Return how far each source is."""
        return {"passes": list(self._numbers), "room": list(self._room)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._numbers = list(state["passes"])
        self._room = list(state["room"])


def count_turns(
    mixture: Mixture,
    lengths: Sequence[int],
    schedule: Schedule,
    turns_per_step: int = 1,
) -> float:
    """Return the turns of an epoch, infinite if it never ends.

    Args:
        mixture: The rules.
        lengths: Items in one pass of each source.
        schedule: Of the epoch, at its start; it is gone through if it must be.
        turns_per_step: As for `planned_turns`.
    """
    limit, cycles = planned_turns(mixture, lengths, turns_per_step)
    if cycles:
        return limit
    if mixture.stop == "ALL_DATASETS_EXHAUSTED":
        return min(limit, sum(lengths[source] for source in mixture.participants))
    passes = Passes(lengths, PassCounter(len(lengths)))
    num_turns = 0
    while num_drawn := len(passes.draw(schedule, _MANY)):
        num_turns += num_drawn
    return num_turns


_MANY = 1 << 20
