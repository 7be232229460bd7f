"""Cuts batches that were made and copied together into single ones."""

from collections import deque
from collections.abc import Callable

from fastloader.stages._stream import BatchStream
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._rows import Merged, cut_rows
from fastloader.typing import Batch

__all__ = ["CutStream"]


class CutStream:
    """A stream of single batches, views of those that another one gives merged.

    Args:
        source: Gives `Merged` batches, wherever they lie by now.
        go_on: Called when the consumer is at work with merged batches that it has got.
    """

    def __init__(self, source: BatchStream, go_on: Callable[[], object] | None = None) -> None:
        self._source = source
        self._go_on = go_on
        self._is_told = True
        self._ready: deque[Batch] = deque()

    def __next__(self) -> Batch:
        """Return the next batch; StopIteration at the end."""
        if not self._ready:
            self._cut(next(self._source))
            self._is_told = self._go_on is None
        elif not self._is_told:
            self._is_told = True
            self._go_on()  # type: ignore[misc]  # told where there is nobody to tell
        return self._ready.popleft()

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list if it is there."""
        if not self._ready:
            for merged in self._source.next_if_ready():
                self._cut(merged)
        return [self._ready.popleft()] if self._ready else []

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        state, count = self._source.queue(), len(self._ready)
        return state._replace(
            num_asked=state.num_asked + count, num_ready=state.num_ready + count
        )

    def close(self) -> None:
        """Cancel what is under way."""
        self._ready.clear()
        self._source.close()

    def _cut(self, merged: Merged) -> None:
        if len(merged.lengths) == 1:
            self._ready.append(merged.batch)
        else:
            self._ready.extend(cut_rows(merged.batch, merged.lengths.tolist()))
