"""Copies batches into page-locked memory, one ahead of the consumer."""

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from fastloader.direct import uncaptured
from fastloader.stages._stream import HostStream, LostBatchError
from fastloader.stages._tree import map_tensors
from fastloader.streams._queue_state import QueueState
from fastloader.threads._waiting import wait_for
from fastloader.typing import Batch

__all__ = ["PinnedStream"]

AHEAD = 2


class PinnedStream:
    """A stream whose batches lie in torch's page-locked memory.

    A thread copies what is ready, into blocks of torch's own cache: torch itself keeps such a block
    until copies from it to a device are over. Memory that we had locked ourselves would not
    be: a batch dropped while its copy is under way would be overwritten. What the consumer has to wait
    for anyway is copied at once.

    **Threads:** one, which does nothing but copy; it ends with `close`.
    """

    def __init__(self, source: HostStream) -> None:
        self._source = source
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="fastloader-pin")
        self._ident: int | None = None
        self._device = torch.accelerator.current_device_index()
        self._waiting: deque[Future[Batch]] = deque()

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            StopIteration: At the end.
            LostBatchError: If the batch cannot be pinned, by an error of its own ``pin_memory`` for instance.
        """
        self._fill(AHEAD)
        if not self._waiting:
            return _pinned(next(self._source))
        wait_for(self._waiting[0])  # what interrupts this loses no batch
        self._fill(AHEAD + 1)
        return self._waiting.popleft().result()

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list if it is pinned already."""
        self._fill(AHEAD)
        if self._waiting and self._waiting[0].done():
            return [self._waiting.popleft().result()]
        return []

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        state, waiting = self._source.queue(), tuple(self._waiting)
        return state._replace(
            num_asked=state.num_asked + len(waiting),
            num_ready=state.num_ready + sum(one.done() for one in waiting),
            num_pinned=state.num_pinned + len(waiting),
        )

    def close(self) -> None:
        """End the thread and cancel what is under way."""
        # The garbage collector may call this in that very thread.
        is_here = threading.get_ident() == self._ident
        self._executor.shutdown(wait=not is_here, cancel_futures=True)
        self._waiting.clear()
        self._source.close()

    def _fill(self, count: int) -> None:
        """Have batches that are there pinned, until there are so many."""
        try:
            while len(self._waiting) < count and not self._source.is_on_demand:
                if not (ready := self._source.next_if_ready()):
                    return
                self._waiting.append(self._executor.submit(self._pin, ready.pop()))
        except Exception as error:  # noqa: BLE001 - raised at its batch, after those before it
            failed: Future[Batch] = Future()
            failed.set_exception(error)
            self._waiting.append(failed)

    def _pin(self, batch: Batch) -> Batch:
        self._ident = threading.get_ident()
        torch.accelerator.set_device_index(self._device)  # of this thread
        return _pinned(batch)


def _pinned(batch: Batch) -> Batch:
    try:
        with uncaptured():  # the loop may be capturing a graph meanwhile
            return map_tensors(batch, torch.Tensor.pin_memory, _pin_by_itself)
    except Exception as error:
        raise LostBatchError(error) from error


def _pin_by_itself(part: Any) -> Any:
    pin = getattr(part, "pin_memory", None)
    return pin() if callable(pin) else NotImplemented
