"""Numbers of the command line, refused as wrong usage where they make no sense."""

import argparse
import math
import re

__all__ = ["bound", "count", "duration", "size"]

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY_UNITS = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def count(text: str) -> int:
    """Return a whole number of 1 or more.

    Raises:
        argparse.ArgumentTypeError: If it is anything else.
    """
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, but got {text!r}")


def bound(text: str) -> int:
    """Return a whole number of 0 or more.

    Raises:
        argparse.ArgumentTypeError: If it is anything else.
    """
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of 0 or more, but got {text!r}")


def duration(text: str) -> float:
    """Return a number of seconds.

    Raises:
        argparse.ArgumentTypeError: If it is none, or not more than 0.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds of more than 0, but got {text!r}"
        )
    return seconds


def size(text: str) -> int:
    """Return a number of bytes, which may have a unit: ``500MB``, ``1.5 GiB``.

    Raises:
        argparse.ArgumentTypeError: If it is anything else.
    """
    number, unit = re.fullmatch(r"([\d.]*)\s*(.*)", text.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
    factor = {**_UNITS, **_BINARY_UNITS}.get(unit.upper())
    try:
        return int(float(number) * factor)  # type: ignore[operator]
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"expected a number of bytes such as 500MB or 20GB, but got {text!r}"
        ) from None
