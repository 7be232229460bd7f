"""Threads that make batches ahead of the consumer, kept from one pass to the next."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from fastloader.threads._crew import Crew
from fastloader.threads._openmp import limit_openmp

__all__ = ["Standby", "StandbyKeeper"]


class Standby:
    """One thread, and a crew that helps it; they start when they first have something to do."""

    def __init__(self, keeper: "StandbyKeeper") -> None:
        self._keeper = keeper
        self.num_threads = torch.get_num_threads()
        """That torch had when they were made."""
        # Torch's threads wait for each other: with one on the core of the training loop, or of
        # whoever waits for copies, a gather takes up to thirty times as long.
        most = max(1, self.num_threads - max(1, self.num_threads // 4))
        self._most = most
        self._ident: int | None = None
        self.executor = ThreadPoolExecutor(1, "fastloader-ahead", initializer=self._begin)
        """The thread."""
        self.crew = Crew(most - 1)
        """To be used in that thread."""

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
        self._idle: list[Standby] = []
        self._pid = os.getpid()
        self._is_closed = False
        self._lock = threading.Lock()

    def lend(self) -> Standby:
        """Return threads that nobody else uses until they are given back."""
        with self._lock:
            if os.getpid() != self._pid:
                self._idle, self._pid = [], os.getpid()
            while self._idle:
                standby = self._idle.pop()
                if standby.num_threads == torch.get_num_threads():
                    return standby
                standby.end()
        return Standby(self)

    def take_back(self, standby: Standby) -> None:
        """Keep threads for the next pass, or end them if there will be none."""
        with self._lock:
            if not self._is_closed and os.getpid() == self._pid:
                self._idle.append(standby)
                return
        standby.end()

    def close(self) -> None:
        """End all threads, those that are lent when they come back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for standby in idle:
            standby.end()
