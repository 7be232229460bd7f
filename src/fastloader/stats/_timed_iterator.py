"""Iterators of other classes, timed in place: they stay of the class that frameworks ask for."""

import sys
import time
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from fastloader._torch_internals import batches_under_way
from fastloader.stats._batch_size import count_samples
from fastloader.stats._pass_tally import PassTally
from fastloader.streams._queue_state import QueueState

__all__ = ["queue_of", "timed"]

T = TypeVar("T")


def timed(iterator: T, tally: PassTally, *, num_samples: int | None) -> T:
    """Let an iterator note its times from now on.

    Args:
        iterator: Of a class written in Python.
        tally: Takes the notes.
        num_samples: In each batch; None looks into the batches.

    Returns:
        The iterator itself, whose class is now a subclass of what it was.
    """
    subject: Any = iterator
    if isinstance(subject, _Timing):
        subject.fastloader_tally.close()  # of the pass before, if it was left
    else:
        subject.__class__ = _timed_class(subject.__class__)
    subject.fastloader_tally = tally
    subject.fastloader_num_samples = num_samples
    return iterator


def queue_of(iterator: object, most_in_dev_shm: int) -> Callable[[], QueueState]:
    """Return what tells how many batches one of torch's iterators has under way.

    Args:
        iterator: Is not kept alive.
        most_in_dev_shm: Batches that its workers may have made.
    """
    reference = weakref.ref(iterator)

    def queue() -> QueueState:
        num_asked, num_ready = batches_under_way(reference())
        return QueueState(num_asked, num_ready, most_in_dev_shm=most_in_dev_shm)

    return queue


class _Timing:
    fastloader_tally: PassTally
    fastloader_num_samples: int | None

    def __next__(self) -> Any:
        started = time.perf_counter()
        try:
            batch = super().__next__()  # type: ignore[misc]
        except StopIteration:
            self.fastloader_tally.note_end(started)
            self.fastloader_tally.close()
            raise
        num_samples = self.fastloader_num_samples
        if num_samples is None:
            num_samples = count_samples(batch, otherwise=1)
        self.fastloader_tally.note(started, num_samples, batch)
        return batch

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.fastloader_tally.close()  # of a pass that was left
        if (end := getattr(super(), "__del__", None)) is not None:
            end()


@cache
def _timed_class(kind: Any) -> Any:
    return type(kind.__name__, (_Timing, kind), {"__module__": kind.__module__})
