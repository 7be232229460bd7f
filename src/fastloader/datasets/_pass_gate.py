"""Tells a dataset of the pass that is read, and keeps threads of other passes waiting meanwhile."""

import threading
from collections.abc import Iterator
from typing import Any

from fastloader._notes import user_block
from fastloader.inspection._live import knows, tell

__all__ = ["PassGate"]


class PassGate:
    """The entrance to one source of a mixture, for the threads of a process.

    A source that has ``set_epoch`` is in one pass at a time, and the last batches of a pass may
    be read at the same time as the first of the next. Threads of one pass read side by side.

    **Processes:** each has its own; a copy begins anew. It is no part of the data: it has no
    ``__dict__``, so that the dataset does not look changed by being read.
    """

    __slots__ = ("_condition", "_knows", "_latest", "_num_readers", "_source")

    def __init__(self, source: Any) -> None:
        self._source = source
        self._knows = knows(source, "set_epoch")
        self._latest: int | None = None
        self._num_readers = 0
        self._condition = threading.Condition()

    def __reduce__(self) -> tuple[type["PassGate"], tuple[Any]]:
        return PassGate, (self._source,)

    def set_epoch(self, epoch: int) -> None:
        """Tell the source of an epoch of the loader."""
        with self._condition:
            self._latest = None
            tell(self._source, "set_epoch", epoch)

    @user_block
    def entered(self, number: int) -> Iterator[None]:
        """Let the block read the source in a pass."""
        if not self._knows:
            yield
            return
        with self._condition:
            self._condition.wait_for(lambda: number == self._latest or not self._num_readers)
            if number != self._latest:
                tell(self._source, "set_epoch", number)
                self._latest = number
            self._num_readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._num_readers -= 1
                self._condition.notify_all()
