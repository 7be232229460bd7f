"""Ends worker processes at exit, before multiprocessing waits for them without a limit."""

import os
from functools import cache
from multiprocessing.util import Finalize
from typing import Protocol
from weakref import WeakSet

__all__ = ["end_at_exit"]

_PRIORITY = 10  # any number from 0 on comes before multiprocessing ends and joins what is left


class _Endable(Protocol):
    def end(self) -> None: ...


_endable: WeakSet[_Endable] = WeakSet()


def end_at_exit(pool: _Endable) -> None:
    """Let `pool.end` be called when this process exits, if the pool still exists then.

    Args:
        pool: Of worker processes, which may ignore to be told to end.
    """
    _endable.add(pool)
    _register(os.getpid())


@cache
def _register(_pid: int) -> None:
    Finalize(None, _end_all, exitpriority=_PRIORITY)


def _end_all() -> None:
    for pool in tuple(_endable):
        pool.end()
