"""Numbers of the command line that make no sense below one or at zero, refused as wrong usage."""

import argparse
import math

__all__ = ["bound", "count", "duration"]


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
