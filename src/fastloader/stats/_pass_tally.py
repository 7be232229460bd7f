"""What one pass over the data tells about itself, noted batch by batch."""

import copy
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from fastloader._queue_state import QueueState
from fastloader.engine import RunCounters
from fastloader.stats._batch_size import count_batch_bytes
from fastloader.stats._memory_watch import MemoryWatch
from fastloader.stats._totals import Totals
from fastloader.typing import Batch

__all__ = ["PassTally"]

FOLDED_AT_ONCE = 4096
LOOKED_AT_FIRST = 8
LOOKED_AT_EVERY = 16
"""Bytes are counted in the first batches and in every so manieth of the others."""
QUICK_SECONDS = 0.1
LOOKED_AT_EVERY_QUICK = 1024
"""The same if the last look was less than so long ago."""


class PassTally:
    """Times, samples and bytes of the batches of one pass.

    A batch costs two readings of the clock, one number at the end of a list and two in
    attributes. Whoever is called for each batch writes them itself, as `note` does, since a call
    would cost a fifth as much again; what is left is done a thousand batches at once, or when
    somebody asks.

    **Threads:** the consumer's notes; any may ask for the totals.

    Args:
        began: When the iterator was asked for, by `time.perf_counter`.
        num_warm_up: Batches after the first that were made while it was waited for.
        counters: Of the engine.
        queue: Tells what is under way.
        previous_end: How long the pass before took to say that it was at its end, in seconds,
            if that was the last thing that the consumer asked of the loader.
        on_close: Called once, by `close`.
        watch: Looks at memory; that of the loader, so that it warns once.
        copy_seconds: Gets how long each copy to a device took.
    """

    def __init__(
        self,
        began: float,
        *,
        num_warm_up: int = 0,
        counters: RunCounters | None = None,
        queue: Callable[[], QueueState] = QueueState,
        previous_end: float | None = None,
        on_close: "Callable[[PassTally], None] | None" = None,
        watch: MemoryWatch | None = None,
        copy_seconds: deque[float] | None = None,
    ) -> None:
        self._waits: list[float] = []
        self.add_wait = self._waits.append
        """Takes the seconds in ``next`` of each batch."""
        self.last_ended = began
        """When the latest batch came, by `time.perf_counter`."""
        self.num_samples = 0
        """In all batches so far."""
        self.next_look = 1
        """Number of the batch, from 1, after whose notes `look` is to be called."""
        self._copy_seconds = copy_seconds
        self.queue = queue
        """Tells what is under way; replaced when the pass is over."""
        self.end_seconds: float | None = None
        """How long the call took that ended the pass; None before that, or if it was left."""
        self._began = began
        self._opening_seconds = time.perf_counter() - began
        self._last_warm_up = 1 + num_warm_up
        self._counters = counters
        self._previous_end = previous_end
        self._on_close = on_close
        self._watch = watch or MemoryWatch()
        self._num_noted = 0
        self._num_folded = 0
        self._last_look = began
        self._steady_began: float | None = None
        self._num_unsteady_samples = 0
        self._lock = threading.Lock()
        self._totals = Totals()
        self._forgotten = Totals()

    def note(self, started: float, num_samples: int, batch: Batch) -> None:
        """Note a batch that is usable now.

        Args:
            started: When it was asked for, by `time.perf_counter`.
            num_samples: In the batch.
            batch: To be looked at now and then.
        """
        ended = time.perf_counter()
        self.add_wait(ended - started)
        self.last_ended = ended
        self.num_samples += num_samples
        self._num_noted += 1
        if self._num_noted == self.next_look:
            self.look(self._num_noted, batch)

    def look(self, number: int, batch: Batch) -> None:
        """Do what is not done for each batch, and say for which it is to be done next.

        Args:
            number: Of the batch in the pass, from 1; it has been noted.
            batch: To be measured.
        """
        num_bytes = count_batch_bytes(batch)
        with self._lock:
            self._totals.num_measured_batches += 1
            self._totals.measured_bytes += num_bytes
            if number == self._last_warm_up:
                self._steady_began = self.last_ended
                self._num_unsteady_samples = self.num_samples
        self._watch.look(self.queue, num_bytes)
        if number >= self._num_folded + FOLDED_AT_ONCE:
            self._fold()
        is_quick = self.last_ended - self._last_look < QUICK_SECONDS
        self._last_look = self.last_ended
        step = LOOKED_AT_EVERY_QUICK if is_quick else LOOKED_AT_EVERY
        self.next_look = number + (1 if number < LOOKED_AT_FIRST else step)
        if number < self._last_warm_up:
            self.next_look = min(self.next_look, self._last_warm_up)

    def note_end(self, started: float) -> None:
        """Note that the pass is over.

        Args:
            started: When the next batch was asked for, by `time.perf_counter`.
        """
        self.end_seconds = time.perf_counter() - started

    def close(self) -> None:
        """Let go of what made the batches; harmless when repeated."""
        self.queue = QueueState
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self)

    def forget(self) -> None:
        """Count from zero from now on."""
        self._fold()
        with self._lock:
            self._totals, self._forgotten = Totals(), Totals(num_samples=self.num_samples)
            self._began = self.last_ended
            if self._steady_began is not None:
                self._steady_began = self.last_ended
                self._num_unsteady_samples = self.num_samples
            self._add_workers(self._forgotten, 0.0)

    def totals(self) -> Totals:
        """Return the sums up to now; a copy."""
        self._fold()
        with self._lock:
            totals = copy.deepcopy(self._totals)
        totals.num_samples = self.num_samples - self._forgotten.num_samples
        totals.elapsed_seconds = self.last_ended - self._began
        if self._steady_began is not None:
            totals.steady_seconds = self.last_ended - self._steady_began
            totals.steady_samples = self.num_samples - self._num_unsteady_samples
        self._add_workers(totals, totals.elapsed_seconds)
        totals.subtract_workers(self._forgotten)
        return totals

    def _add_workers(self, totals: Totals, elapsed_seconds: float) -> None:
        if (counters := self._counters) is not None:
            elapsed = [elapsed_seconds] * len(counters.busy_seconds)
            totals.add_workers(
                counters.busy_seconds, counters.cpu_seconds, counters.made_batches, elapsed
            )

    def _fold(self) -> None:
        with self._lock:
            if (seconds := self._copy_seconds) is not None:
                self._totals.copies.add([seconds.popleft() for _ in range(len(seconds))])
            count = len(self._waits)  # the consumer may add more meanwhile
            if not count:
                return
            waits = np.fromiter(self._waits[:count], np.float64, count)
            del self._waits[:count]
            done, totals = self._num_folded, self._totals
            self._num_folded += count
            totals.num_batches += count
            if not done:
                totals.num_passes = 1
                first = self._opening_seconds + float(waits[0])
                totals.first.add([first])
                if self._previous_end is not None:
                    totals.gaps.add([self._previous_end + first])
            first_warm = max(0, 1 - done)
            first_steady = max(first_warm, self._last_warm_up - done)
            totals.warm_up.add(waits[first_warm:first_steady])
            totals.steady.add(waits[first_steady:])
