"""What a mixture is made of: sources, whose turn it is, and when an epoch ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias, get_args

from fastloader.errors import SettingsError

__all__ = ["EpochLength", "Mixture", "StopRule", "Strategy"]

Strategy: TypeAlias = Literal["round_robin", "sequential", "weighted", "random", "pattern"]
"""Whose turn it is."""

StopRule: TypeAlias = Literal[
    "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED",
    "ALL_DATASETS_EXHAUSTED",
    "FIRST_DATASET_EXHAUSTED",
    "CYCLE_FOREVER",
]
"""What to do about sources that have run out; the names are those of `torchdata.nodes`."""

EpochLength: TypeAlias = Literal["sum", "max", "min"]
"""Turns of an epoch, by the lengths of the sources."""

_DRAWN = frozenset({"weighted", "random"})
"""Strategies that follow weights."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Validated rules of a mixture; sources are known by their position in `names`.

    Raises:
        SettingsError: If the rules cannot work together.
    """

    names: tuple[str, ...]
    """Of the sources."""
    strategy: Strategy
    """Whose turn it is."""
    weights: tuple[float, ...]
    """Share of each source in the turns, in any unit; all 1 unless given."""
    pattern: tuple[int, ...]
    """Sources in the order of their turns, again and again; empty unless given."""
    burst: int
    """Turns that a source takes in a row."""
    stop: StopRule
    """What to do about sources that have run out."""
    epoch_length: int | EpochLength | None
    """Most turns of an epoch; None for as many as `stop` allows."""

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        *,
        strategy: Strategy,
        weights: Mapping[str, float] | None,
        pattern: Sequence[str] | None,
        burst: int,
        stop: StopRule | Literal["auto"],
        epoch_length: int | EpochLength | None,
    ) -> Self:
        """Return the mixture that a caller describes.

        Args:
            names: Of the sources.
            strategy: As given by the caller, like all that follow.
            weights: By name.
            pattern: Names.
            burst: Number.
            stop: ``"auto"`` cycles to the length given; else, where the caller asks for
                shares, until each source has run out once; else gives each source once.
            epoch_length: Number, or the name of a rule.

        Raises:
            SettingsError: If the description makes no sense.
        """
        _check_choice("strategy", strategy, get_args(Strategy))
        if stop == "auto":
            stop = _choose_stop(strategy, epoch_length)
        _check_choice("stop", stop, get_args(StopRule))
        if not names:
            raise SettingsError("A mixture needs one source or more, but got none.")
        if weights is not None and strategy not in _DRAWN:
            raise SettingsError(
                f"weights need strategy='weighted' or 'random', but got {strategy!r}."
            )
        if (pattern is not None) != (strategy == "pattern"):
            raise SettingsError(
                "pattern and strategy='pattern' need each other, but got "
                f"strategy={strategy!r} with pattern={pattern!r}."
            )
        return cls(
            tuple(names),
            strategy,
            tuple(1.0 for _ in names) if weights is None else _read_weights(names, weights),
            () if pattern is None else _read_pattern(names, pattern),
            burst,
            stop,
            epoch_length,
        )

    def __post_init__(self) -> None:
        if type(self.burst) is not int or self.burst < 1:
            raise SettingsError(f"burst must be 1 or more, but got {self.burst!r}.")
        if self.burst > 1 and self.strategy == "sequential":
            raise SettingsError(
                "strategy='sequential' gives each source as a whole: leave burst out."
            )
        length = self.epoch_length
        if type(length) is int:
            if length < 1:
                raise SettingsError(f"epoch_length must be 1 or more, but got {length}.")
        elif length is not None:
            _check_choice("epoch_length", length, get_args(EpochLength))

    def with_weights(self, weights: Mapping[str, float]) -> Self:
        """Return the same mixture with other weights.

        Args:
            weights: By name; sources that are left out keep theirs.

        Raises:
            SettingsError: If the mixture has no weights, or these make no sense.
        """
        if self.strategy not in _DRAWN:
            raise SettingsError(
                "Weights need strategy='weighted' or 'random', but this mixture has "
                f"strategy={self.strategy!r}."
            )
        known = dict(zip(self.names, self.weights, strict=True))
        return replace(self, weights=_read_weights(self.names, {**known, **weights}))

    @property
    def participants(self) -> tuple[int, ...]:
        """Sources that ever have a turn."""
        if self.strategy == "pattern":
            return tuple(sorted(set(self.pattern)))
        return tuple(number for number, weight in enumerate(self.weights) if weight > 0)

    @property
    def drops_exhausted(self) -> bool:
        """Whether a source that has run out has no further turn until all have."""
        return self.strategy == "sequential" or self.stop == "ALL_DATASETS_EXHAUSTED"


def _choose_stop(strategy: Strategy, epoch_length: int | EpochLength | None) -> StopRule:
    if epoch_length is not None:
        return "CYCLE_FOREVER"
    if strategy in _DRAWN or strategy == "pattern":
        return "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"
    return "ALL_DATASETS_EXHAUSTED"


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise SettingsError(f"{name} must be one of {listed}, but got {value!r}.")


def _read_weights(names: Sequence[str], weights: Mapping[str, float]) -> tuple[float, ...]:
    if set(weights) != set(names):
        raise SettingsError(
            f"weights must name each source, {sorted(names)}, but got {sorted(weights)}."
        )
    values = tuple(float(weights[name]) for name in names)
    if not all(math.isfinite(value) and value >= 0 for value in values) or not sum(values):
        raise SettingsError(
            f"weights must be finite, 0 or more, and not all 0, but got {dict(weights)}."
        )
    return values


def _read_pattern(names: Sequence[str], pattern: Sequence[str]) -> tuple[int, ...]:
    if not pattern:
        raise SettingsError("pattern must name one source or more, but it is empty.")
    numbers = {name: number for number, name in enumerate(names)}
    if unknown := sorted(set(pattern) - set(names)):
        raise SettingsError(
            f"pattern names the sources {unknown}, but there are only {sorted(names)}."
        )
    return tuple(numbers[name] for name in pattern)
