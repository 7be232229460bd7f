"""Waiting for another thread in a way that Ctrl-C ends without breaking anything."""

import threading
from concurrent.futures import Future
from typing import Any

from fastloader.threads._held_interrupts import held_interrupts

__all__ = ["wait_for"]


def wait_for(future: Future[Any]) -> None:
    """Wait until a future is done; SIGINT is held back before and after, as far as it may be.

    `Future.result` waits for a condition, whose lock stays with whom a signal takes out of it at
    the wrong moment: then either the waiting thread fails ("release unlocked lock") or the other one hangs.

    Args:
        future: Of another thread.

    Raises:
        KeyboardInterrupt: Or what else the handler raises; the future can be waited for again.
    """
    held_interrupts.hold()
    if future.done():
        return
    done = threading.Lock()
    done.acquire()
    future.add_done_callback(lambda _: done.release())
    held_interrupts.let_through()
    done.acquire()
    held_interrupts.hold()
