"""Lets a thread make batches ahead of the consumer."""

from collections import deque
from concurrent.futures import Future, wait

import torch

from fastloader.direct import uncaptured
from fastloader.stages._stream import BatchStream
from fastloader.streams._queue_state import QueueState
from fastloader.threads._standby import Standby
from fastloader.threads._waiting import wait_for
from fastloader.typing import Batch

__all__ = ["AheadStream"]


class AheadStream:
    """A stream whose batches a thread asks another stream for before they are wanted.

    For work that leaves the interpreter free, such as gathering rows of large arrays.

    **Threads:** the one that stands by; only it touches the source, until `close`.

    Args:
        source: Of the batches.
        depth: Batches that are made ahead.
        standby: Has the thread; given back by `close`.
    """

    def __init__(self, source: BatchStream, depth: int, standby: Standby) -> None:
        self._source = source
        self._standby = standby
        self._ahead: deque[Future[list[Batch]]] = deque()
        self._is_ended = False
        self._is_first = True
        self._is_closed = False
        self._num_missing = depth - 1
        self._ask()

    def __next__(self) -> Batch:
        """Return the next batch, waiting for it.

        Raises:
            StopIteration: At the end of the pass.
            OutOfMemoryError: If a device has no memory for it, now that it is asked for.
        """
        if not self._is_first:
            self.go_on()
        self._is_first = is_asked_again = False
        while self._ahead:
            wait_for(self._ahead[0])  # what interrupts this loses no batch
            next_one = self._ahead.popleft()
            self._num_missing += 1
            try:
                made = next_one.result()
            except torch.OutOfMemoryError:
                if is_asked_again:
                    raise
                # Made ahead there was no memory for it, beside batches that are used up by now.
                is_asked_again = True
                self.go_on()
                continue
            if made:
                # The thread would take turns for the interpreter with whoever has asked. One that is
                # at work is told now of what follows, one that stands still when they have their batch.
                if self._ahead and not self._ahead[0].done():
                    self.go_on()
                return made[0]
            self._is_ended = True
        raise StopIteration

    def begin(self) -> None:
        """Let the thread go on at once if there is nothing ready."""
        if not self._ahead:
            self.go_on()

    def go_on(self) -> None:
        """Let the thread begin with what was put off; the next call of `next` does it as well."""
        while self._num_missing:
            self._num_missing -= 1
            self._ask()

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list if it has been made."""
        if self._ahead and self._ahead[0].done():
            try:
                return [next(self)]
            except StopIteration:
                return []
        return []

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        state, ahead = self._source.queue(), tuple(self._ahead)
        return state._replace(
            num_asked=state.num_asked + len(ahead),
            num_ready=state.num_ready + sum(one.done() for one in ahead),
        )

    def close(self) -> None:
        """Cancel what has not begun and wait for what has.

        One of the threads itself, if the garbage collector calls this there, leaves it to come after
        what it is at.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for one in self._ahead:
            one.cancel()
        if self._standby.is_here():
            self._standby.executor.submit(self._finish)
            return
        wait(self._ahead)
        self._finish()

    def _finish(self) -> None:
        self._ahead.clear()
        self._source.close()
        self._standby.give_back()

    def _ask(self) -> None:
        if not self._is_ended:
            self._ahead.append(self._standby.executor.submit(self._make))

    def _make(self) -> list[Batch]:
        try:
            with uncaptured():  # the loop may be capturing a graph of its device meanwhile
                return [next(self._source)]
        except StopIteration:
            return []
