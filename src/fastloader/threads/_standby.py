"""Threads that make batches, or help to, kept from one pass to the next."""

import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch

from fastloader.threads._crew import Crew
from fastloader.threads._openmp import limit_openmp

__all__ = ["Standby", "StandbyKeeper"]


class Standby:
    """One thread, and a crew that helps it or the consumer; they start when they first have something to do.

    Args:
        keeper: Takes them back.
        is_ahead: Whether the thread is to make batches while the consumer computes, to whom it leaves cores.
    """

    def __init__(self, keeper: "StandbyKeeper", *, is_ahead: bool = True) -> None:
        self._keeper = keeper
        self._pid = os.getpid()
        self.is_ahead = is_ahead
        self.num_threads = torch.get_num_threads()
        """That torch had when they were made."""
        # Torch's threads wait for each other: with one on the core of the training loop, or of
        # whoever waits for copies, a gather takes up to thirty times as long.
        num_left = max(1, self.num_threads // 4) if is_ahead else 0
        most = max(1, self.num_threads - num_left)
        self._most = most
        self._ident: int | None = None
        self.crew = Crew(most - 1)
        """To be used in that thread, or by the consumer where it leaves them no core."""

    @cached_property
    def executor(self) -> ThreadPoolExecutor:
        """The thread; one that only helps has none."""
        return ThreadPoolExecutor(1, "fastloader-ahead", initializer=self._begin)

    @property
    def is_usable(self) -> bool:
        """Whether the threads are in this process, and as many as torch has now."""
        return self._pid == os.getpid() and self.num_threads == torch.get_num_threads()

    def is_here(self) -> bool:
        """Tell whether the caller is one of these threads.

        The garbage collector runs in any thread, and may end there what belongs to these.
        """
        return threading.get_ident() == self._ident or self.crew.is_here()

    def give_back(self) -> None:
        """Let the next pass have the threads, which must be idle."""
        self._keeper.take_back(self)

    def end(self) -> None:
        """End the threads, which cannot wait for themselves; harmless when repeated."""
        if "executor" in vars(self):
            self.executor.shutdown(wait=not self.is_here())
        self.crew.close()

    def _begin(self) -> None:
        self._ident = threading.get_ident()
        limit_openmp(self._most)


class StandbyKeeper:
    """Lends threads to the passes of one loader.

    Starting the threads of the crew, and those that torch starts for each thread that it computes
    in, takes as long as gathering a hundred small batches.

    **Processes:** a forked child, which has none of the threads, starts its own.
    **Threads:** any may give back.
    """

    def __init__(self) -> None:
        # Without a lock: the garbage collector may give threads back in the midst of all this.
        self._idle: dict[bool, deque[Standby]] = {False: deque(), True: deque()}
        self._is_closed = False

    def lend(self, *, is_ahead: bool = True) -> Standby:
        """Return threads that nobody else uses until they are given back.

        Args:
            is_ahead: As in `Standby`.
        """
        for standby in _emptied(self._idle[is_ahead]):
            if standby.is_usable:
                return standby
            standby.end()
        return Standby(self, is_ahead=is_ahead)

    def take_back(self, standby: Standby) -> None:
        """Keep threads for the next pass, or end them if there will be none."""
        self._idle[standby.is_ahead].append(standby)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """End all threads, those that are lent when they come back."""
        self._is_closed = True
        for idle in self._idle.values():
            for standby in _emptied(idle):
                standby.end()


def _emptied(idle: deque[Standby]) -> Iterator[Standby]:
    """Yield what is taken out, the last one first, until there is none."""
    while True:
        try:
            standby = idle.pop()
        except IndexError:
            return
        yield standby
