"""Lets Ctrl-C wait while a batch that was taken from workers is on its way to the caller."""

import threading

# What `signal` wraps: it makes enumerations of all it returns, which takes ten times as long, and
# this is done for each batch.
from _signal import SIGINT, getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import Any

__all__ = ["HeldInterrupts", "held_interrupts"]


_MAIN = threading.main_thread().ident
"""In a child that another thread has forked this is nobody, who may not set a handler either."""


class HeldInterrupts:
    """Holds SIGINT back from the moment a batch is taken until it is in the caller's reach.

    What a handler raises between two lines would lose what the first has taken out of a pipe, a
    sampler or a queue, and end a generator. So who gives a batch to a user says `begin` before
    and `end` after; who takes one out of anything says `hold`, and `let_through` before it waits.
    A second signal within is not held back, for code of users that does not return.

    **Threads:** does nothing in others than the main one, as no handler runs there.
    """

    def __init__(self) -> None:
        self._is_begun = False
        self._handler: Any = None  # that is to be called for signals that are held back
        self._stand_in = self._note
        self.received: list[tuple[int, FrameType | None]] = []
        """Signals that are held back."""

    def begin(self) -> None:
        """Let `hold` have an effect until `end`."""
        if get_ident() == _MAIN:
            if self.received:  # while another one was let through
                self.received = []
            self._is_begun = True

    def hold(self) -> None:
        """Hold signals back from now on, between `begin` and `end`."""
        if self._handler is not None or not self._is_begun or get_ident() != _MAIN:
            return  # the first while they are held already
        handler = getsignal(SIGINT)
        if handler is not self._stand_in and callable(handler):
            self._handler = handler
            signal(SIGINT, self._stand_in)

    def let_through(self) -> None:
        """Call the handler for a signal that was held back, and hold none back any more.

        Raises:
            KeyboardInterrupt: Or what else the handler raises.
        """
        if self._is_begun and get_ident() == _MAIN:
            self._let_through()

    def _let_through(self) -> None:
        handler = self._handler
        if getsignal(SIGINT) is self._stand_in:  # nobody has set another meanwhile
            # Python looks for signals at each call: one may come before this one, or after it.
            signal(SIGINT, handler)
        self._handler = None
        if self.received and handler is not None:
            received, self.received = self.received, []
            handler(*received[-1])

    def end(self) -> None:
        """Let signals through, and hold none back until `begin`.

        Raises:
            KeyboardInterrupt: Or what else the handler raises.
        """
        if self._is_begun and get_ident() == _MAIN:
            self._is_begun = False
            if self._handler is not None:
                self._let_through()

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Let neither `hold` nor `let_through` have an effect within a block.

        It is for finalizers: the collector may call them wherever signals are held back, and what a handler raises
        in them is lost.
        """
        if get_ident() != _MAIN:
            yield
            return
        was_begun, self._is_begun = self._is_begun, False
        try:
            yield
        finally:
            self._is_begun = was_begun

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append((number, frame))
        if len(self.received) > 1:
            self.let_through()


held_interrupts = HeldInterrupts()
"""Of this process, which has one handler."""
