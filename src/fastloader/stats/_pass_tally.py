"""What one pass over the data tells about itself, noted batch by batch."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sized
from math import inf

from fastloader.engine import RunCounters
from fastloader.stats._batch_size import count_batch_bytes
from fastloader.stats._memory_watch import MemoryWatch
from fastloader.stats._sources import SourceCount, add_counts, subtract_counts
from fastloader.stats._totals import Totals
from fastloader.streams._queue_state import QueueState
from fastloader.typing import Batch

__all__ = ["PassTally", "note_nothing"]

LOOKED_AT_ONCE = 4
"""Batches in a row whose bytes are counted: the first ones, and then some now and then."""
LOOK_EVERY_SECONDS = 0.2
"""Between such rows."""
AT_ONCE = -inf


class PassTally:
    """Times, samples and bytes of the batches of one pass.

    A batch costs two readings of the clock, one number at the end of a list, one in an attribute
    and, where others than the last may have fewer samples, a look at how many it has. Whoever is called for each batch writes them itself, as `note` does, since a call
    would cost a fifth as much again; what is left is done a thousand batches at once, or when somebody
    asks.

    **Threads:** the consumer's notes; any may ask for the totals.

    Args:
        began: When the iterator was asked for, by `time.perf_counter`.
        num_warm_up: Batches after the first that were made while it was waited for.
        counters: Of the engine.
        queue: Tells what is under way.
        previous_end: How long the pass before took to say that it was at its end, in seconds,
            if that was the last thing that the consumer asked of the loader.
        watch: Looks at memory; that of the loader, so that it warns once.
        copy_seconds: Gets how long each copy to a device took.
        sources: Tells what each source of a mixture has given in the pass, by name.
        batch_size: Samples in each batch but the last; None where others may differ, too, and each is
            noted.
        last_indices: Tells those of the latest batch, which may be the last; asked only if there is a
            `batch_size`.
    """

    def __init__(
        self,
        began: float,
        *,
        num_warm_up: int = 0,
        counters: RunCounters | None = None,
        queue: Callable[[], QueueState] = QueueState,
        previous_end: float | None = None,
        watch: MemoryWatch | None = None,
        copy_seconds: deque[float] | None = None,
        sources: Callable[[], Mapping[str, SourceCount]] = dict,
        batch_size: int | None = None,
        last_indices: Callable[[], Sized | None] = lambda: None,
    ) -> None:
        self.waits: list[float] = []
        """Seconds in ``next`` of each batch, appended to; taken away by `look`."""
        self.last_ended = began
        """When the latest batch came, by `time.perf_counter`."""
        self.usual_samples = batch_size or 0
        """In a batch: as many as in the first. Batches with others are told by `note_unusual`."""
        self.next_look = AT_ONCE
        """By `time.perf_counter`; `look` is called for the first batch that comes later."""
        self.catch_up: Callable[[], None] = note_nothing
        """Adds to `waits` those of batches that somebody took without a note; replaced by who hands them out."""
        self._copy_seconds = copy_seconds
        self._sources = sources
        self.queue = queue
        """Tells what is under way; replaced when the pass is over."""
        self.end_seconds: float | None = None
        """How long the call took that ended the pass; None before that, or if it was left."""
        self._began = began
        self._closed: float | None = None
        self._opening_seconds = time.perf_counter() - began
        self._last_warm_up = 1 + num_warm_up
        self._counters = counters
        self._previous_end = previous_end
        self._watch = watch or MemoryWatch()
        self._num_folded = 0
        self._unusual_samples = 0
        self._last_indices = last_indices if batch_size else None
        self._num_to_measure = LOOKED_AT_ONCE
        self._steady_began: float | None = None
        self._num_unsteady_samples = 0
        self._lock = threading.Lock()
        self._num_measured_batches = self._measured_bytes = 0  # not part of the sums
        self._sums: Totals | None = None  # made with the first
        self._forgotten: Totals | None = None

    def note(self, started: float, num_samples: int, batch: Batch) -> None:
        """Note a batch that is usable now.

        Args:
            started: When it was asked for, by `time.perf_counter`.
            num_samples: In the batch.
            batch: To be looked at now and then.
        """
        if num_samples != self.usual_samples:
            self.note_unusual(num_samples)
        ended = time.perf_counter()
        self.waits.append(ended - started)
        self.last_ended = ended
        if ended > self.next_look:
            self.look(batch)

    def note_unusual(self, num_samples: int) -> None:
        """Note that the batch whose wait is noted next has not `usual_samples`.

        Args:
            num_samples: In the batch.
        """
        if not self.usual_samples:
            self.usual_samples = num_samples
            with self._lock:
                num_before = self._num_folded + len(self.waits)
            self._unusual_samples = -num_samples * num_before  # those had none
        else:
            self._unusual_samples += num_samples - self.usual_samples

    def look(self, batch: Batch) -> None:
        """Do what is not done for each batch, and say when it is to be done next.

        Args:
            batch: The latest, which has been noted.
        """
        with self._lock:
            number = self._num_folded + len(self.waits)
            if self._steady_began is None and number >= self._last_warm_up:
                self._steady_began = self.last_ended
                self._num_unsteady_samples = self._samples_in(number)
        if self._num_to_measure:
            self._num_to_measure -= 1
            self._measure(batch)
        elif self.next_look > AT_ONCE:
            self._fold()
            # From the next one on: what was waited for long comes late more often than others do.
            self._num_to_measure = LOOKED_AT_ONCE
        is_settled = number >= self._last_warm_up and not self._num_to_measure
        self.next_look = self.last_ended + LOOK_EVERY_SECONDS if is_settled else AT_ONCE

    def _measure(self, batch: Batch) -> None:
        num_bytes = count_batch_bytes(batch)
        with self._lock:
            self._num_measured_batches += 1
            self._measured_bytes += num_bytes
        self._watch.look(self.queue, num_bytes)

    def note_end(self, started: float) -> None:
        """Note that the pass is over.

        Args:
            started: When the next batch was asked for, by `time.perf_counter`.
        """
        self.end_seconds = time.perf_counter() - started

    def close(self) -> None:
        """Let go of what made the batches; harmless when repeated.

        What is noted is summed up when somebody asks: short passes would feel it at their end. No
        lock is taken: iterators that are garbage end wherever the collector begins to run.
        """
        self.catch_up()
        self.catch_up = note_nothing
        self.queue = QueueState
        self._unusual_samples, self._last_indices = self._count_unusual(), None
        if self._counters is not None:
            # Workers may have other passes to make.
            has_workers = bool(self._counters.made_batches)
            self._counters = self._counters.copy() if has_workers else None
        self._closed = self._closed or time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be noted."""
        return self._closed is not None

    def forget(self) -> None:
        """Count from zero from now on."""
        self.catch_up()
        self._fold()
        with self._lock:
            num_samples = self._samples_in(self._num_folded)
            self._sums = None
            self._num_measured_batches = self._measured_bytes = 0
            self._forgotten = Totals(num_samples=num_samples, sources=dict(self._sources()))
            self._began = self.last_ended
            if self._steady_began is not None:
                self._steady_began = self.last_ended
                self._num_unsteady_samples = num_samples
            self._add_workers(self._forgotten, 0.0)

    def add_to(self, totals: Totals) -> None:
        """Add the sums up to now to those of other passes."""
        self.catch_up()
        self._fold()
        sources = self._sources()  # code of others, before anything is added
        with self._lock:
            if self._sums is not None:
                totals.merge(self._sums)
            totals.num_measured_batches += self._num_measured_batches
            totals.measured_bytes += self._measured_bytes
            num_samples = self._samples_in(self._num_folded)
        totals.num_samples += num_samples
        totals.elapsed_seconds += self.last_ended - self._began
        if self._steady_began is not None:
            totals.steady_seconds += self.last_ended - self._steady_began
            totals.steady_samples += num_samples - self._num_unsteady_samples
        # Workers go on while the consumer does something else.
        ended = time.perf_counter() if self._closed is None else self._closed
        self._add_workers(totals, ended - self._began)
        if self._forgotten is not None:
            totals.num_samples -= self._forgotten.num_samples
            sources = subtract_counts(sources, self._forgotten.sources)
            totals.subtract_workers(self._forgotten)
        totals.sources = add_counts(totals.sources, sources)

    def _samples_in(self, num_batches: int) -> int:
        return self.usual_samples * num_batches + self._count_unusual()

    def _count_unusual(self) -> int:
        """Return how many more samples there are than if all batches were like the first."""
        ask = self._last_indices
        last = None if ask is None else ask()
        return self._unusual_samples + (0 if last is None else len(last) - self.usual_samples)

    def _add_workers(self, totals: Totals, elapsed_seconds: float) -> None:
        if (counters := self._counters) is not None:
            elapsed = [elapsed_seconds] * len(counters.busy_seconds)
            totals.add_workers(
                counters.busy_seconds, counters.cpu_seconds, counters.made_batches, elapsed
            )

    def _fold(self) -> None:
        with self._lock:
            totals = self._sums = self._sums or Totals()
            if (seconds := self._copy_seconds) is not None:
                totals.copies.add([seconds.popleft() for _ in range(len(seconds))])
            count = len(self.waits)  # the consumer may add more meanwhile
            if not count:
                return
            waits = self.waits[:count]
            del self.waits[:count]
            done = self._num_folded
            self._num_folded += count
            totals.num_batches += count
            if not done:
                totals.num_passes = 1
                first = self._opening_seconds + waits[0]
                totals.first.add([first])
                if self._previous_end is not None:
                    totals.gaps.add([self._previous_end + first])
            first_warm = max(0, 1 - done)
            first_steady = max(first_warm, self._last_warm_up - done)
            totals.warm_up.add(waits[first_warm:first_steady])
            totals.steady.add(waits[first_steady:])


def note_nothing() -> None:
    """Do what there is to do where each batch is noted at once."""
