"""Something open, in the process and thread that uses it only: never inherited, never sent."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["OpenedHere", "state_without"]

T = TypeVar("T")


def state_without(thing: object, *names: str) -> dict[str, Any]:
    """Return an object's attributes without some, which are made again where they are missing.

    Args:
        thing: Object with attributes in a dict.
        names: Of cached properties that must not travel.
    """
    return {name: value for name, value in vars(thing).items() if name not in names}


class OpenedHere(Generic[T]):
    """Opens something on first use in each process and thread.

    **Processes:** a forked child opens its own, since a file's position, a connection's state
    and a library's threads are not to be shared; a pickle holds how to open it.
    """

    def __init__(self, open_it: Callable[[], T]) -> None:
        """Take down how to open it.

        Args:
            open_it: Called where it is needed; can be pickled. Of a method's object no reference
                is kept: it has this one, and what is open has to be let go of with it, not by
                some collection of garbage, which may be that of a forked child.
        """
        is_method = hasattr(open_it, "__self__") and hasattr(open_it, "__func__")
        self._find: Callable[[], Callable[[], T] | None] = (
            weakref.WeakMethod(open_it) if is_method else lambda: open_it
        )
        self._here = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"open_it": self._find()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def get(self) -> T:
        """Return it as opened by this process and thread; it stays open."""
        if getattr(self._here, "process", None) != os.getpid():
            open_it = self._find()
            assert open_it is not None  # noqa: S101 - whoever asks has its object
            self._here.value = open_it()
            self._here.process = os.getpid()
        value: T = self._here.value
        return value

    def close(self) -> None:
        """Let go of what this thread has open."""
        self._here = threading.local()
