"""The turns of one epoch, one after the other, while sources run out and begin again."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastloader.errors import ResumeError, SettingsError
from fastloader.mixing._mixture import Mixture
from fastloader.mixing._turns import Turns, turns_of_block

__all__ = ["Schedule", "planned_turns"]

_SHARES_BLOCK = 128
"""Turns in which exact shares are kept, in bursts."""

_BLOCK = 8192
"""Turns decided at a time where there are no shares to keep, in bursts."""


class Schedule:
    """Says which source has the next turn, until the epoch ends.

    The caller takes a turn and gets an item from the source that has it. If the source has no
    more, the caller says so by `run_out`, and the turn counts for nothing: sources that have
    run out eat no turns. All is a function of rules, seed and epoch, and of when sources run
    out, so every rank comes to the same schedule without a word to the others.

    Args:
        mixture: The rules.
        lengths: Items in one pass of each source; None where that is not known.
        seed: Of what is drawn at random.
        epoch: Number of the epoch.
        block_size: Turns in which exact shares are kept; by default some that suit the bursts.
        turns_per_step: Turns that one step of `Mixture.epoch_length` stands for, where that is
            a number.

    Attributes:
        limit: The most turns of the epoch; may be infinite.
        is_fixed: Whether the epoch has as many turns as that, because sources that have run
            out begin again.

    Raises:
        SettingsError: If the rules need lengths that are not known.
    """

    def __init__(
        self,
        mixture: Mixture,
        lengths: Sequence[int | None],
        *,
        seed: int,
        epoch: int,
        block_size: int | None = None,
        turns_per_step: int = 1,
    ) -> None:
        self._mixture = mixture
        self._key = (seed, epoch)
        if mixture.strategy == "weighted":
            self._block_size = block_size or _SHARES_BLOCK * mixture.burst
        else:
            self._block_size = _BLOCK * mixture.burst
        self.limit, self.is_fixed = planned_turns(mixture, lengths, turns_per_step)
        self._exhausted: set[int] = set()
        self._num_taken = 0
        self._is_ended = False
        self._number = 0
        self._active: tuple[int, ...] = ()
        self._dealt: tuple[int, ...] = ()
        self._turns: Turns = np.empty(0, np.int64)
        self._place = 0

    def take_turn(self) -> int | None:
        """Return the source that has the next turn, or None at the end of the epoch."""
        turns = self.take_turns(1)
        return int(turns[0]) if len(turns) else None

    def take_turns(self, limit: int, room: Sequence[int] | None = None) -> Turns:
        """Return the sources of the turns that come next.

        Args:
            limit: The most to take.
            room: Items left in the current pass of each source: only the turns before the
                first for which there is none are taken.

        Returns:
            Some turns, no fewer than one if there are any and there is room for the first.
        """
        while not self._is_ended:
            self._skip_exhausted()
            if self._place < len(self._turns):
                break
            self._begin_block()
        if self._is_ended or self._num_taken >= self.limit:
            return self._turns[:0]
        end = self._place + int(min(limit, self.limit - self._num_taken))
        turns = self._turns[self._place : end]
        if self._drops_now:
            turns = turns[: _first(np.isin(turns, list(self._exhausted)), len(turns))]
        if room is not None:
            turns = turns[: _num_fitting(turns, room)]
        self._place += len(turns)
        self._num_taken += len(turns)
        return turns

    def run_out(self, source: int) -> bool:
        """Take back the turn just taken, because its source has no more items.

        Args:
            source: Whose turn it was.

        Returns:
            True if the source should begin again: the turn then counts after all. False if
            the next turn is to be taken, which may be none.
        """
        self._exhausted.add(source)
        if self._is_over():
            self._is_ended = True
        elif not self._mixture.drops_exhausted:
            return True
        elif self._exhausted.issuperset(self._mixture.participants):
            self._exhausted.clear()  # a new round of all, from the first
            self._place = len(self._turns)
        self._num_taken -= 1
        return False

    def _is_over(self) -> bool:
        if self.is_fixed:
            return False
        if self._mixture.stop == "FIRST_DATASET_EXHAUSTED":
            return True
        return self._exhausted.issuperset(self._mixture.participants)

    @property
    def _drops_now(self) -> bool:
        return self._mixture.drops_exhausted and not self._exhausted.isdisjoint(self._active)

    def _skip_exhausted(self) -> None:
        if self._drops_now:
            rest = self._turns[self._place :]
            self._place += _first(~np.isin(rest, list(self._exhausted)), len(rest))

    def _begin_block(self) -> None:
        mixture = self._mixture
        dropped = self._exhausted if mixture.drops_exhausted else ()
        active = tuple(n for n in mixture.participants if n not in dropped)
        if len(self._turns):
            counts = np.bincount(self._turns, minlength=len(mixture.names)).tolist()
            self._dealt = tuple(
                had + counts[source]
                for had, source in zip(self._dealt, self._active, strict=True)
            )
            self._number += 1
        if active != self._active:
            self._active, self._dealt = active, (0,) * len(active)
        self._make_block()
        self._place = 0

    def _make_block(self) -> None:
        size = self._block_size
        if self.limit < math.inf:  # the last block keeps the shares to its end
            size = max(1, min(size, int(self.limit) - sum(self._dealt)))
        key = (*self._key, self._number)
        self._turns = turns_of_block(self._mixture, self._active, self._dealt, size, key)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the epoch: a few numbers for each source."""
        return {
            "num_taken": self._num_taken,
            "is_ended": self._is_ended,
            "exhausted": sorted(self._exhausted),
            "block": self._number,
            "place": self._place,
            "active": list(self._active),
            "dealt": list(self._dealt),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a place in an epoch of the same rules, seed and number.

        Raises:
            ResumeError: If the state is that of another mixture.
        """
        if not set(state["active"]) <= set(self._mixture.participants):
            raise ResumeError(
                f"The state is that of a mixture in which the sources {state['active']} take "
                f"part, but in this one {list(self._mixture.participants)} do."
            )
        self._num_taken = state["num_taken"]
        self._is_ended = state["is_ended"]
        self._exhausted = set(state["exhausted"])
        self._number = state["block"]
        self._place = state["place"]
        self._active = tuple(state["active"])
        self._dealt = tuple(state["dealt"])
        if self._active:
            self._make_block()


def planned_turns(
    mixture: Mixture, lengths: Sequence[int | None], turns_per_step: int = 1
) -> tuple[float, bool]:
    """Return the most turns of an epoch, and whether sources cycle until then.

    Where shares are exact and all lengths are known, the end that the stop rule means is
    planned ahead, so that the shares are exact there.

    Args:
        mixture: The rules.
        lengths: Items in one pass of each source; None where that is not known.
        turns_per_step: Turns that one step of a fixed length stands for.

    Raises:
        SettingsError: If the rules need lengths that are not known.
    """
    limit = _fixed_turns(mixture, lengths, turns_per_step)
    if mixture.stop == "CYCLE_FOREVER":
        return limit, True
    taking_part = [(mixture.weights[n], lengths[n]) for n in mixture.participants]
    known = [(weight, length) for weight, length in taking_part if length is not None]
    is_exact = mixture.strategy == "weighted" and mixture.stop != "ALL_DATASETS_EXHAUSTED"
    if not is_exact or len(known) < len(taking_part):
        return limit, False
    unit = sum(weight for weight, _ in known)
    ends = [length * unit / weight for weight, length in known]
    if mixture.stop == "FIRST_DATASET_EXHAUSTED":
        return min(limit, math.floor(min(ends) + _ROUNDING)), True
    return min(limit, math.ceil(max(ends) - _ROUNDING)), True


_ROUNDING = 1e-6
"""Keeps ``3 / 0.3`` from being more than 10."""


def _fixed_turns(mixture: Mixture, lengths: Sequence[int | None], turns_per_step: int) -> float:
    rule = mixture.epoch_length
    if rule is None:
        return math.inf
    if isinstance(rule, int):
        return rule * turns_per_step
    known = [length for n in mixture.participants if (length := lengths[n]) is not None]
    if len(known) < len(mixture.participants):
        unknown = [mixture.names[n] for n in mixture.participants if lengths[n] is None]
        raise SettingsError(
            f"epoch_length={rule!r} needs the length of each source, but {unknown} have none: "
            "give a number."
        )
    if rule == "sum":
        return sum(known)
    return max(known) if rule == "max" else min(known)


def _num_fitting(turns: Turns, room: Sequence[int]) -> int:
    fitting = len(turns)
    counts = np.bincount(turns, minlength=len(room)).tolist()
    for source, count in enumerate(counts):
        if count > room[source]:
            fitting = min(fitting, int(np.flatnonzero(turns == source)[room[source]]))
    return fitting


def _first(is_hit: npt.NDArray[np.bool_], otherwise: int) -> int:
    """Return the position of the first True."""
    return int(is_hit.argmax()) if is_hit.any() else otherwise
