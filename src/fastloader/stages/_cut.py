"""Cuts batches that were made and copied together into single ones."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from operator import length_hint

from fastloader.stages._stream import BatchStream
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._rows import CUT_AT_ONCE, Merged, cut_rows
from fastloader.threads._held_interrupts import held_interrupts
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
        self._pieces: deque[Merged] = deque()
        """Of merged batches, not cut yet."""
        self.ready: Iterator[Batch] = iter(())
        """Of a sequence: the next batches, to be taken by whoever asks for them."""

    def __next__(self) -> Batch:
        """Return the next batch; StopIteration at the end."""
        if not length_hint(self.ready):
            self._refill()
        elif not self._is_told:
            self._is_told = True
            self._go_on()  # type: ignore[misc]  # told where there is nobody to tell
        held_interrupts.hold()
        return next(self.ready)

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list if it is there."""
        if not length_hint(self.ready):
            if not self._pieces:
                for merged in self._source.next_if_ready():
                    self._divide(merged)
            if self._pieces:
                self._cut()
        return list(islice(self.ready, 1))

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        pieces = tuple(self._pieces)
        state = self._source.queue()
        count = length_hint(self.ready) + sum(len(piece.lengths) for piece in pieces)
        return state._replace(
            num_asked=state.num_asked + count, num_ready=state.num_ready + count
        )

    def close(self) -> None:
        """Cancel what is under way."""
        self.ready = iter(())
        self._pieces.clear()
        self._source.close()

    def _refill(self) -> None:
        if not self._pieces:
            self._divide(next(self._source))
            self._is_told = self._go_on is None
        self._cut()

    def _divide(self, merged: Merged) -> None:
        """Take merged batches, to be cut by and by."""
        lengths = merged.lengths
        if len(lengths) <= CUT_AT_ONCE:
            self._pieces.append(merged)
            return
        parts = [lengths[at : at + CUT_AT_ONCE] for at in range(0, len(lengths), CUT_AT_ONCE)]
        pieces = cut_rows(merged.batch, [int(part.sum()) for part in parts])
        self._pieces.extend(map(Merged, pieces, parts))

    def _cut(self) -> None:
        held_interrupts.hold()
        batch, lengths = self._pieces.popleft()
        self.ready = iter([batch] if len(lengths) == 1 else cut_rows(batch, lengths.tolist()))
