"""Ends worker processes when their parent exits, and not when a child of their parent does."""

import os
from functools import cache
from multiprocessing.util import Finalize
from typing import Protocol
from weakref import WeakSet

__all__ = ["end_at_exit"]

_PRIORITY = 10  # any number from 0 on comes before multiprocessing ends and joins what is left


class _Endable(Protocol):
    def end(self) -> None: ...

    def disown(self) -> None: ...


_endable: WeakSet[_Endable] = WeakSet()


def end_at_exit(pool: _Endable) -> None:
    """Let `pool.end` be called when this process exits, if the pool still exists then.

    Multiprocessing waits without a limit for those that have not ended by then. In a child that was
    forked `pool.disown` is called at once: at its own exit multiprocessing would end them there.

    Args:
        pool: Of worker processes, which may ignore to be told to end.
    """
    _endable.add(pool)
    _register(os.getpid())


@cache
def _register(_pid: int) -> None:
    Finalize(None, _end_all, exitpriority=_PRIORITY)
    _watch_forks()


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_disown_all)


def _end_all() -> None:
    for pool in tuple(_endable):
        pool.end()


def _disown_all() -> None:
    for pool in tuple(_endable):
        pool.disown()
