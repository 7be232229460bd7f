"""An iterator over batches that lie ready many at a time, of which each costs a look at clock and stream."""

from collections.abc import Iterator
from itertools import repeat
from operator import length_hint
from threading import RLock
from time import perf_counter
from typing import Any

from fastloader._torch_internals import not_compiled
from fastloader.engine import Deliveries
from fastloader.epochs._iterator import LoaderIterator
from fastloader.epochs._position import MapPosition
from fastloader.sampling._drawn import Stretch
from fastloader.stages import ResidentStream
from fastloader.stats import PassTally, note_nothing
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.typing import Batch

__all__ = ["HandIterator"]

_NOWHERE = None
"""No stream: of an iterator that has nothing to give. Streams of torch's may be compared with each other and with this."""


class HandIterator(LoaderIterator):
    """One pass over data on a device, whose batches are cut many at a time.

    A training loop drives code out of the processor's caches, so that each line of what a batch costs takes several
    times as long as in a loop that does nothing. So the consumer takes batches out of an iterator of C, which is one
    step of the interpreter: no signal and no other thread comes between that and the return. They are noted, for
    statistics and for the place in the epoch, when there are no more or when somebody asks.

    Args:
        stream: The batches; there is no ``transform``, ``count`` or ``reported_length``.
        position: Kept up to date with what the consumer has got, once it is asked to be.
        **options: See `LoaderIterator`.
    """

    def __init__(
        self, stream: ResidentStream, *, position: MapPosition, **options: Any
    ) -> None:
        super().__init__(stream, position=position, **options)
        self._tell_stream = stream.tell_stream
        self._told: Any = _NOWHERE
        self._hand = _Hand(self._deliveries, position, self._tally)

    @not_compiled
    def __next__(self) -> Batch:
        """Return the next batch; see `LoaderIterator`."""
        while True:
            if self._tell_stream() == self._told:
                self._tally.last_ended = perf_counter()
                for batch in self._hand.batches:
                    return batch
            if not self._fill():
                return LoaderIterator.__next__(self)  # of whose class it is now

    def close(self, *, is_healthy: bool = True) -> None:
        """Cancel what is under way; see `LoaderIterator`."""
        self._told = _NOWHERE
        self._hand.close()
        super().close(is_healthy=is_healthy)

    def _fill(self) -> bool:
        """Have batches lie ready for the current stream; return whether they are to be taken there.

        Raises:
            StopIteration: At the end of the epoch.
            KeyboardInterrupt: At Ctrl-C, which loses nothing.
        """
        with self._taking:
            held_interrupts.begin()
            try:
                if self._is_closed:
                    raise StopIteration
                if self._renew is not None:
                    self._renew_once(self._renew)
                stream = self._stream
                if type(self) is not HandIterator or not isinstance(stream, ResidentStream):
                    return False  # the epoch that somebody has chosen comes in another way
                self._fill_from(stream)
            finally:
                held_interrupts.end()
        return True

    def _fill_from(self, stream: ResidentStream) -> None:
        tally, started = self._tally, perf_counter()
        try:
            first = stream.fill()
        except BaseException as error:
            self._hand.catch_up()
            self._note_failure(error, started)
            raise
        self._hand.catch_up()  # with what other threads have taken meanwhile
        if first:
            ended = tally.last_ended = perf_counter()
            tally.waits.append(ended - started)
            if ended > tally.next_look:
                tally.look(first[0])
        self._hand.fill(stream.ready, is_first_noted=bool(first))
        self._told = stream.told


class _Hand:
    """Batches that the consumer may take, and notes of those that it took.

    Statistics keep it, so it knows nothing of the iterator, whose end is the end of the pass.

    **Threads:** any may call `catch_up`.
    """

    def __init__(self, deliveries: Deliveries, position: MapPosition, tally: PassTally) -> None:
        self.batches: Iterator[Batch] = iter(())
        self._num_left = 0
        self._is_first_noted = False
        self._deliveries = deliveries
        self._position = position
        self._tally = tally
        self._noting = RLock()  # a handler of signals may ask where the pass is
        position.catch_up = tally.catch_up = self.catch_up

    def fill(self, batches: Iterator[Batch], *, is_first_noted: bool) -> None:
        """Have other batches, when those of before are taken or are among them.

        Args:
            batches: An iterator of a list.
            is_first_noted: Whether the tally knows how long the first was waited for.
        """
        with self._noting:
            self._num_left = length_hint(batches)
            self._is_first_noted = is_first_noted
            self.batches = batches

    def catch_up(self) -> None:
        """Note what was taken since: the place in the epoch, and that nobody waited for it."""
        with self._noting:
            num_left = length_hint(self.batches)
            if (count := self._num_left - num_left) == 0:
                return
            self._tally.waits.extend(repeat(0.0, count - self._is_first_noted))
            self._is_first_noted = False
            while self._num_left > num_left:
                delivery = self._deliveries.popleft()
                if not isinstance(delivery.indices, Stretch):
                    self._position.advance(delivery)
                    self._num_left -= delivery.has_batch
                    continue
                taken, rest = delivery.indices.split(self._num_left - num_left)
                if rest:
                    self._deliveries.appendleft(
                        delivery._replace(number=rest.numbers.start, indices=rest)
                    )
                self._position.advance_past(taken)
                self._num_left -= len(taken)

    def close(self) -> None:
        """Have no batches any more, and be asked for nothing."""
        self.catch_up()
        self._position.catch_up = self._tally.catch_up = note_nothing
        with self._noting:
            self._num_left, self.batches = 0, iter(())
