"""A callback that several threads may call."""

import threading
from collections.abc import Callable

__all__ = ["one_at_a_time"]


def one_at_a_time(function: Callable[[int], None] | None) -> Callable[[int], None]:
    """Return a function that any thread may call; calls of the given one never overlap.

    Args:
        function: What to call; nothing if None.
    """
    lock = threading.Lock()

    def call(count: int) -> None:
        if function is not None:
            with lock:
                function(count)

    return call
