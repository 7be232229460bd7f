"""How far the consumer is in an epoch; only batches that it has got count."""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from fastloader.engine import Delivery, PackedPoint, StreamPoint, unpack_point
from fastloader.sampling._drawn import Stretch
from fastloader.sampling._epoch_order import OrderStart
from fastloader.stats import note_nothing

__all__ = ["EpochPosition", "MapPosition", "Origin", "StreamPosition"]


class EpochPosition(ABC):
    """The place of the consumer in one epoch.

    Args:
        epoch: Number of the epoch.
        start: What its order was drawn from.
        num_batches: Batches that are done at the beginning: more than 0 in a resumed epoch.
    """

    def __init__(self, epoch: int, start: OrderStart, *, num_batches: int = 0) -> None:
        self.epoch = epoch
        self.start = start
        self.num_batches = num_batches
        self.is_finished = False
        self.catch_up: Callable[[], None] = note_nothing
        """Notes what the consumer has got since; to be called before anybody reads the place."""

    def __getstate__(self) -> dict[str, Any]:
        self.catch_up()
        return {**self.__dict__, "catch_up": note_nothing}

    @abstractmethod
    def advance(self, delivery: Delivery) -> None:
        """Note that the consumer is past a task.

        Args:
            delivery: What came of it.
        """

    @abstractmethod
    def finish(self, sampler_state: bytes | None) -> None:
        """Note that the consumer has seen the end of the epoch.

        Args:
            sampler_state: Of the sampler at the end of its order, pickled.
        """

    def last_indices(self) -> Sized | None:
        """Return what was asked for with the batch that the consumer got last, if that is known."""
        return None


@dataclass(frozen=True)
class Origin:
    """Where the batches of an epoch are counted from.

    A resumed epoch may go on with another batch size or on another number of ranks: what was
    done before is then a number of samples of the whole order, not of batches.
    """

    num_samples: int = 0
    """Done before, by all ranks together."""
    num_batches: int = 0
    """Done before, by each rank."""


class MapPosition(EpochPosition):
    """A place in the order of a map-style dataset.

    Args:
        epoch: Number of the epoch.
        start: What its order was drawn from.
        num_batches: Batches that are done at the beginning.
        done: Numbers of batches beyond these that are done too.
        sampler_state: Of a sampler with a ``state_dict``, pickled.
        is_over: Whether nothing of the order is left, and the state of the sampler is that before the next.
        origin: Where batches are counted from.
    """

    def __init__(
        self,
        epoch: int,
        start: OrderStart,
        *,
        num_batches: int = 0,
        done: frozenset[int] = frozenset(),
        sampler_state: bytes | None = None,
        is_over: bool = False,
        origin: Origin = Origin(),
    ) -> None:
        super().__init__(epoch, start, num_batches=num_batches)
        self.is_over = is_over
        self.origin = origin
        self._last = Delivery(num_batches - 1, None, 0, False, sampler_state, None)
        self._beyond: dict[int, Delivery] = {}
        if done:
            self._beyond = {number: self._last._replace(number=number) for number in done}

    @property
    def sampler_state(self) -> Any:
        """What the ``state_dict`` of the sampler returned at this place; None without one."""
        state = self._last.sampler_state
        return None if state is None else pickle.loads(state)  # noqa: S301 - of this process

    @property
    def done(self) -> list[int]:
        """Numbers of batches that the consumer got before some that were drawn earlier."""
        return sorted(self._beyond)

    def advance(self, delivery: Delivery) -> None:
        """Note that the consumer is past a batch, in order or not."""
        if delivery.number == self.num_batches and not self._beyond:
            self._last = delivery
            self.num_batches += 1
            return
        self._beyond[delivery.number] = delivery
        while self.num_batches in self._beyond:
            self._last = self._beyond.pop(self.num_batches)
            self.num_batches += 1

    def advance_past(self, stretch: Stretch) -> None:
        """Note that the consumer has got the next batches, in order.

        Args:
            stretch: At least one.
        """
        last = stretch[-1]
        # As an array: what was sent to a device with them is not to stay there.
        self._last = Delivery(last.number, last.indices.array, 0, True, None, None)
        self.num_batches = last.number + 1

    def finish(self, sampler_state: bytes | None) -> None:
        """Note that the consumer has seen the end of the epoch."""
        self.is_finished = True
        self._last = self._last._replace(sampler_state=sampler_state)

    def last_indices(self) -> Sized | None:
        """Return the indices of the last batch; None where its samples were all left out.

        Of batches that came in order.
        """
        last = self._last
        return last.indices if last.has_batch else None


class StreamPosition(EpochPosition):
    """A place in each worker's share of an iterable dataset.

    Args:
        epoch: Number of the epoch.
        start: What its seeds were drawn from.
        num_workers: Workers, 0 for this process.
        num_batches: Batches that are done at the beginning.
        points: Where the workers go on.
        next_worker: Whose turn it is.
    """

    def __init__(
        self,
        epoch: int,
        start: OrderStart,
        *,
        num_workers: int,
        num_batches: int = 0,
        points: Mapping[int, StreamPoint] | None = None,
        next_worker: int = 0,
    ) -> None:
        super().__init__(epoch, start, num_batches=num_batches)
        self.num_workers = num_workers
        self.next_worker = next_worker
        self._points = dict(points or {})
        self._packed: dict[int, PackedPoint] = {}

    def advance(self, delivery: Delivery) -> None:
        """Note that the consumer is past a batch, or past the end of a worker's share."""
        if delivery.stream_point is not None:
            self._packed[delivery.worker] = delivery.stream_point
        if delivery.has_batch:
            self.num_batches += 1
            self.next_worker = (delivery.worker + 1) % max(1, self.num_workers)

    def finish(self, sampler_state: bytes | None) -> None:  # noqa: ARG002 - no sampler decides
        """Note that the consumer has seen the end of the epoch."""
        self.is_finished = True

    def points(self) -> dict[int, StreamPoint]:
        """Return where each worker is that has made a batch."""
        told = {worker: unpack_point(point) for worker, point in self._packed.items()}
        return {**self._points, **told}
