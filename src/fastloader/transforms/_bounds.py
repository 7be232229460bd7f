"""Checks of the numbers that transforms are made with, once, where they enter."""

from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastloader.errors import SettingsError
from fastloader.randomness._keyed import Draws

__all__ = [
    "Bounds",
    "check_bounds",
    "check_number",
    "check_probability",
    "check_size",
    "check_whole",
    "draw_between",
]

Bounds: TypeAlias = float | tuple[float, float]
"""A range to draw from, evenly, as (low, high); or one number that is always taken."""


def check_bounds(name: str, bounds: Bounds, lowest: float = -np.inf) -> tuple[float, float]:
    """Return a range as (low, high).

    Args:
        name: Name of the argument, for the message.
        bounds: The range to check.
        lowest: Smallest value allowed.

    Raises:
        SettingsError: If it is not a number or an ascending pair of them, or goes too low.
    """
    pair = bounds if isinstance(bounds, tuple | list) else (bounds, bounds)
    try:
        low, high = map(float, pair)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{name} must be a number or a pair (low, high), but got {bounds!r}."
        ) from error
    if not lowest <= low <= high < np.inf:
        at_least = "" if lowest == -np.inf else f" of at least {lowest:g}"
        raise SettingsError(
            f"{name} must be a finite number or pair (low, high){at_least} with low <= high, "
            f"but got {bounds!r}."
        )
    return low, high


def draw_between(draws: Draws, bounds: Bounds, num: int | None = None) -> NDArray[Any]:
    """Draw from a range; a draw is made for a fixed number too, so that the order stays.

    Args:
        draws: Random numbers of N images.
        bounds: The range.
        num: How many for each image, or None; see `Draws.uniform`.
    """
    low, high = bounds if isinstance(bounds, tuple | list) else (bounds, bounds)
    return np.asarray(draws.uniform(low, high, num))


def check_probability(name: str, probability: Any) -> None:
    """Check a probability or a share.

    Args:
        name: Name of the argument, for the message.
        probability: The number to check.

    Raises:
        SettingsError: If it is not from 0 to 1.
    """
    if not isinstance(probability, Real) or not 0 <= float(probability) <= 1:
        raise SettingsError(f"{name} must be from 0 to 1, but got {probability!r}.")


def check_size(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return a size as (height, width).

    Args:
        name: Name of the argument, for the message.
        size: Height and width in pixels, or one number for both.

    Raises:
        SettingsError: If it is not one or two whole numbers of at least 1.
    """
    pair: tuple[Any, ...] = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(pair) != 2 or not all(isinstance(n, Integral) and int(n) >= 1 for n in pair):
        raise SettingsError(
            f"{name} must be a whole number of pixels or a pair (height, width), at least 1, "
            f"but got {size!r}."
        )
    return pair[0], pair[1]


def check_number(name: str, number: Any) -> None:
    """Check a value of a pixel.

    Args:
        name: Name of the argument, for the message.
        number: The number to check.

    Raises:
        SettingsError: If it is no number.
    """
    if not isinstance(number, Real):
        raise SettingsError(f"{name} must be a number, but got {number!r}.")


def check_whole(name: str, number: Any, lowest: int) -> None:
    """Check a number of things.

    Args:
        name: Name of the argument, for the message.
        number: The number to check.
        lowest: Smallest value allowed.

    Raises:
        SettingsError: If it is not a whole number, or smaller.
    """
    if not isinstance(number, Integral) or int(number) < lowest:
        raise SettingsError(
            f"{name} must be a whole number of at least {lowest}, but got {number!r}."
        )
