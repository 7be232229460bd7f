"""Lets Ctrl-C wait until a fork is over, within which it would be lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["interrupts_deferred"]


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Call the handler of SIGINT after the block, if the signal came within.

    Python prints and drops whatever a hook of a fork raises (`os.register_at_fork`; `random`,
    `logging` and `threading` have some), a `KeyboardInterrupt` as well. To block the signal does
    not help: the system then gives it to another thread, of a library, and Python runs the
    handler in the main thread all the same.

    **Processes:** a child that is forked within ignores the signal until it sets a handler.
    **Threads:** does nothing in others than the main one, as no handler runs there.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *signalled: received.append(signalled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[-1])
