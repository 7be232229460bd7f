"""Where one worker is in an iterable dataset: read after each batch, and gone on from."""

import pickle
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from fastloader.errors import ResumeError
from fastloader.streams._false_end import false_end
from fastloader.typing import Sample, Stateful

__all__ = [
    "PackedPoint",
    "StreamPoint",
    "StreamTeller",
    "as_bytes",
    "end_stream",
    "open_stream",
    "unpack_point",
]


class StreamPoint(NamedTuple):
    """A place in one worker's share of an iterable dataset."""

    number: int
    """Of the task that got there."""
    num_samples: int
    """Read so far."""
    is_ended: bool
    """Whether nothing is left."""
    dataset: Any = None
    """What the ``state_dict`` of the dataset returned, if it has one."""
    iterator: Any = None
    """The same for what ``iter(dataset)`` returned; a dataset that is its own iterator is here."""

    @property
    def is_read_again(self) -> bool:
        """Whether there is no other way to get here than to read all samples before it."""
        has_state = self.dataset is not None or self.iterator is not None
        return not (has_state or self.is_ended) and self.num_samples > 0


PackedPoint: TypeAlias = StreamPoint | bytes
"""A place that later reading does not change: pickled, where it has a state."""


class StreamTeller:
    """Tells where an iterable dataset is, while it is read.

    Args:
        dataset: The iterable dataset.
        iterator: What ``iter(dataset)`` returned.
    """

    def __init__(self, dataset: Any, iterator: Any) -> None:
        # Asked once: to compare with a protocol takes longer than to make a small batch.
        saves_dataset = iterator is not dataset and isinstance(dataset, Stateful)
        self._dataset: Stateful | None = dataset if saves_dataset else None
        self._iterator: Stateful | None = iterator if isinstance(iterator, Stateful) else None
        self._kind = type(dataset).__name__

    def tell(self, number: int, num_samples: int, *, is_ended: bool) -> PackedPoint:
        """Return the place.

        Args:
            number: Of the task at hand.
            num_samples: Read so far.
            is_ended: Whether nothing is left.

        Raises:
            ResumeError: If the state of the dataset cannot be pickled.
        """
        if self._dataset is None and self._iterator is None:
            return StreamPoint(number, num_samples, is_ended)
        point = StreamPoint(
            number,
            num_samples,
            is_ended,
            None if self._dataset is None else self._dataset.state_dict(),
            None if self._iterator is None else self._iterator.state_dict(),
        )
        try:
            return pickle.dumps(point, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise ResumeError(
                f"The state_dict of {self._kind} or of its iterator cannot be pickled "
                f"({type(error).__name__}: {error}): return plain numbers, strings, lists, "
                "dictionaries, tensors and arrays."
            ) from error


def as_bytes(packed: PackedPoint) -> bytes:
    """Return a place in the form in which it travels."""
    return (
        packed if isinstance(packed, bytes) else pickle.dumps(packed, pickle.HIGHEST_PROTOCOL)
    )


def unpack_point(packed: PackedPoint) -> StreamPoint:
    """Return a place that a `StreamTeller` of this process, or of its workers, told."""
    if isinstance(packed, StreamPoint):
        return packed
    point: StreamPoint = pickle.loads(packed)
    return point


def open_stream(dataset: Iterable[Sample], point: StreamPoint | None) -> Iterator[Sample]:
    """Return an iterator over a dataset, from a place on.

    States are loaded in this order: of the dataset, then ``iter``, then of the iterator. With
    neither, the iterator is at the beginning; see `StreamPoint.is_read_again`.

    Args:
        dataset: The iterable dataset.
        point: Where to go on; None starts at the beginning.

    Raises:
        RuntimeError: If ``iter`` raises a `StopIteration`, as if the data were at an end.
    """
    if point is not None and isinstance(dataset, Stateful) and point.dataset is not None:
        dataset.load_state_dict(point.dataset)
    try:
        samples = iter(dataset)
    except StopIteration as error:
        told: RuntimeError = false_end(error, "__iter__")
        raise told from error
    if point is not None and point.iterator is not None and isinstance(samples, Stateful):
        samples.load_state_dict(point.iterator)
    return samples


def end_stream(dataset: Any, point: StreamPoint) -> None:
    """Bring a dataset, all of whose samples were read, to where it was then.

    Args:
        dataset: The iterable dataset.
        point: Its end.
    """
    if point.dataset is not None:
        dataset.load_state_dict(point.dataset)
