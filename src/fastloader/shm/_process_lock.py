"""A lock among the threads of one process that a forked child finds free."""

import os
import threading
from collections.abc import Callable
from types import TracebackType

__all__ = ["ProcessLock"]


class ProcessLock:
    """A lock for threads; whoever held it in the parent at a fork does not exist in the child.

    **Processes:** a forked child and whoever unpickles one start with a free lock of their own.
    """

    __slots__ = ("_lock", "_on_fork", "_process")

    def __init__(self, on_fork: Callable[[], object] | None = None) -> None:
        """Make a free lock.

        Args:
            on_fork: Called in a forked child before the lock is first taken there; a pickle
                goes without it.
        """
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._on_fork = on_fork

    def __reduce__(self) -> tuple[type["ProcessLock"], tuple[()]]:
        return ProcessLock, ()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock = threading.Lock()
            self._process = os.getpid()
            if self._on_fork is not None:
                self._on_fork()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
