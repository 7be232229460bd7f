"""Iterate over an iterator without asking it for one, as every loop and slice does."""

from collections.abc import Iterator
from itertools import repeat
from typing import TypeVar

__all__ = ["nexts"]

T = TypeVar("T")


def nexts(iterator: Iterator[T]) -> Iterator[T]:
    """Return what is left of an iterator, by calls of ``next`` alone and without code of Python.

    A class of the user's may be its own iterator, and begin anew in ``__iter__``.

    Args:
        iterator: What ``iter`` returned.

    Examples:
        >>> list(nexts(iter([1, 2])))
        [1, 2]
    """
    return map(next, repeat(iterator))
