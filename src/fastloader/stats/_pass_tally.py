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

FOLDED_AT_ONCE = 1024
MEASURED_FIRST = 8
MEASURED_EVERY = 16
"""Bytes are counted in the first batches and in every so manieth of the others."""


class PassTally:
    """Times, samples and bytes of the batches of one pass.

    A batch costs two looks at the clock and one append; sums are made of a thousand records at
    once, or when somebody asks.

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
    ) -> None:
        self._began = began
        self._opening_seconds = time.perf_counter() - began
        self._num_warm_up = num_warm_up
        self._counters = counters
        self._previous_end = previous_end
        self._on_close = on_close
        self.queue = queue
        """Tells what is under way; replaced when the pass is over."""
        self.end_seconds: float | None = None
        """How long the call took that ended the pass; None before that, or if it was left."""
        # When it was asked for, when it came, and its samples; plain, since it costs least.
        self._records: deque[tuple[float, float, int]] = deque()
        self._num_noted = 0
        self._num_folded = 0
        self._next_measured = 1
        self._last_ended = began
        self._lock = threading.Lock()
        self._totals = Totals()
        self._forgotten = Totals()
        self._watch = watch or MemoryWatch()

    def note(self, started: float, num_samples: int, batch: Batch) -> None:
        """Note a batch that is usable now.

        Args:
            started: When it was asked for, by `time.perf_counter`.
            num_samples: In the batch.
            batch: To be measured now and then.
        """
        self._records.append((started, time.perf_counter(), num_samples))
        number = self._num_noted = self._num_noted + 1
        if number == self._next_measured:
            self._next_measured += 1 if number < MEASURED_FIRST else MEASURED_EVERY
            self._totals.num_measured_batches += 1
            num_bytes = count_batch_bytes(batch)
            self._totals.measured_bytes += num_bytes
            self._watch.look(self.queue, num_bytes)
        if not number % FOLDED_AT_ONCE:
            self._fold()

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
            self._totals, self._forgotten = Totals(), Totals()
            self._began = self._last_ended
            self._add_workers(self._forgotten, 0.0)

    def totals(self) -> Totals:
        """Return the sums up to now; a copy."""
        self._fold()
        with self._lock:
            totals = copy.deepcopy(self._totals)
        totals.elapsed_seconds = self._last_ended - self._began
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
            records = [self._records.popleft() for _ in range(len(self._records))]
            if not records:
                return
            started, ended, num_samples = np.array(records, np.float64).T
            waits = ended - started
            before = started - np.concatenate([[self._last_ended], ended[:-1]])
            self._last_ended = float(ended[-1])
            totals = self._totals
            done = self._num_folded
            self._num_folded += len(records)
            totals.num_batches += len(records)
            totals.num_samples += int(num_samples.sum())
            if not done:
                totals.num_passes = 1
                first = self._opening_seconds + float(waits[0])
                totals.first.add([first])
                if self._previous_end is not None:
                    totals.gaps.add([self._previous_end + first])
            first_warm = max(0, 1 - done)
            first_steady = max(first_warm, 1 + self._num_warm_up - done)
            totals.warm_up.add(waits[first_warm:first_steady])
            steady = waits[first_steady:]
            totals.steady.add(steady)
            totals.steady_seconds += float(steady.sum() + before[first_steady:].sum())
            totals.steady_samples += int(num_samples[first_steady:].sum())
