"""Cuts batches that were made and copied together into single ones."""

from collections import deque
from collections.abc import Callable

from fastloader.stages._stream import BatchStream
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._rows import Merged, cut_rows
from fastloader.typing import Batch

__all__ = ["CutStream"]

_CUT_AT_ONCE = 64
"""Batches. With all of a pass, hundreds of objects, the collector of garbage would look at them each time."""


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
        self._pieces: deque[Merged] = deque()
        """Of merged batches, not cut yet."""
        self._ready: deque[Batch] = deque()

    def __next__(self) -> Batch:
        """Return the next batch; StopIteration at the end."""
        if not self._ready:
            if not self._pieces:
                self._divide(next(self._source))
                self._is_told = self._go_on is None
            self._cut()
        elif not self._is_told:
            self._is_told = True
            self._go_on()  # type: ignore[misc]  # told where there is nobody to tell
        return self._ready.popleft()

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list if it is there."""
        if not self._ready:
            if not self._pieces:
                for merged in self._source.next_if_ready():
                    self._divide(merged)
            if self._pieces:
                self._cut()
        return [self._ready.popleft()] if self._ready else []

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        pieces = tuple(self._pieces)
        state = self._source.queue()
        count = len(self._ready) + sum(len(piece.lengths) for piece in pieces)
        return state._replace(
            num_asked=state.num_asked + count, num_ready=state.num_ready + count
        )

    def close(self) -> None:
        """Cancel what is under way."""
        self._ready.clear()
        self._pieces.clear()
        self._source.close()

    def _divide(self, merged: Merged) -> None:
        """Take merged batches, to be cut by and by."""
        lengths = merged.lengths
        if len(lengths) <= _CUT_AT_ONCE:
            self._pieces.append(merged)
            return
        parts = [lengths[at : at + _CUT_AT_ONCE] for at in range(0, len(lengths), _CUT_AT_ONCE)]
        pieces = cut_rows(merged.batch, [int(part.sum()) for part in parts])
        self._pieces.extend(map(Merged, pieces, parts))

    def _cut(self) -> None:
        batch, lengths = self._pieces.popleft()
        if len(lengths) == 1:
            self._ready.append(batch)
        else:
            self._ready.extend(cut_rows(batch, lengths.tolist()))
