"""What a dataset was when copies of it were made, apart from the epochs that it was told since."""

import weakref
from collections.abc import Callable
from typing import Any

from fastloader.inspection._fingerprint import fingerprint

__all__ = ["SeenState", "tell_quietly"]

_living: "weakref.WeakSet[SeenState]" = weakref.WeakSet()


class SeenState:
    """A fingerprint that goes along with `tell_quietly`.

    **Processes:** the main one.
    """

    def __init__(self) -> None:
        self.fingerprint: Any = None
        _living.add(self)


def tell_quietly(dataset: Any, tell: Callable[[], None]) -> None:
    """Tell a dataset what its copies are told by other ways: that is no change of it.

    Loaders may share a dataset, so all that have seen it are to know.

    Args:
        dataset: The dataset.
        tell: Calls it.
    """
    in_use = [seen for seen in tuple(_living) if seen.fingerprint is not None]
    if not in_use:  # no workers anywhere: looking takes up to some milliseconds
        tell()
        return
    before = fingerprint(dataset)
    tell()
    after = fingerprint(dataset)
    for seen in in_use:
        if seen.fingerprint == before:
            seen.fingerprint = after
