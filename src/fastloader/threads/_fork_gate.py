"""Lets a thread finish what a forked child could not live with before the process forks."""

import os
import threading
import weakref
from types import TracebackType

__all__ = ["ForkGate"]

_gates: "weakref.WeakSet[ForkGate]" = weakref.WeakSet()
_is_registered = False


class ForkGate:
    """Held by a thread while it is in foreign code; a fork waits until it is let go.

    A child of a fork has one thread: a lock that another thread holds at that moment, Arrow's
    or the memory allocator's, stays locked in the child for ever. While the thread is between
    two pieces of work it calls `pause`, and a waiting fork goes ahead there.

    **Processes:** in a forked child the gate is open, and the thread that held it is gone.
    """

    __slots__ = ("__weakref__", "_has_passed", "_is_wanted", "_lock")

    def __init__(self) -> None:
        self.reset()
        _gates.add(self)
        _register_once()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def pause(self) -> None:
        """Let a fork go ahead if one waits; for the thread that holds the gate."""
        if self._is_wanted:
            self._lock.release()
            self._has_passed.wait()
            self._lock.acquire()

    def reset(self) -> None:
        """Open the gate, whoever held it."""
        self._lock = threading.RLock()  # the thread that holds the gate may fork itself
        self._is_wanted = False
        self._has_passed = threading.Event()

    def close_for_fork(self) -> None:
        """Wait until the thread pauses, and keep it there."""
        self._has_passed.clear()
        self._is_wanted = True
        self._lock.acquire()

    def let_go(self) -> None:
        """Let the thread go on."""
        self._is_wanted = False
        self._lock.release()
        self._has_passed.set()


def _register_once() -> None:
    global _is_registered  # noqa: PLW0603 - handlers cannot be taken back, so there is one set
    if not _is_registered and hasattr(os, "register_at_fork"):
        _is_registered = True
        os.register_at_fork(
            before=_close_all, after_in_parent=_let_go_all, after_in_child=_open_all
        )


class _Closed(threading.local):
    gates: "tuple[ForkGate, ...]" = ()


_closed = _Closed()
"""By a fork of this thread; others may fork, and gates be made, at the same time."""


def _close_all() -> None:
    _closed.gates = tuple(_gates)
    for gate in _closed.gates:
        gate.close_for_fork()


def _let_go_all() -> None:
    for gate in _closed.gates:
        gate.let_go()
    _closed.gates = ()


def _open_all() -> None:
    _closed.gates = ()
    for gate in list(_gates):
        gate.reset()
