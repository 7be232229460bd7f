"""What a run tells about each task that the consumer is past, so that an epoch can be resumed."""

from collections import deque
from typing import Any, NamedTuple, TypeAlias

from fastloader.engine._stream_point import PackedPoint

__all__ = ["Deliveries", "Delivery", "UncutDeliveries"]


class Delivery(NamedTuple):
    """The end of one task, in the order in which the consumer sees it."""

    number: int
    """Of the batch in its epoch."""
    indices: Any
    """Of the samples that were asked for."""
    worker: int
    """That made it; 0 without workers."""
    has_batch: bool
    """False if there was none: all samples skipped, or the share of the worker at its end."""
    sampler_state: bytes | None
    """Of the sampler after it gave the batch, pickled, if it has any."""
    stream_point: PackedPoint | None
    """Where an iterable dataset was after the batch; None for any other."""


Deliveries: TypeAlias = deque[Delivery]
"""Those of the batches that a run has handed out and the consumer has not seen yet."""


class UncutDeliveries(Deliveries):
    """Deliveries of which some are of a `Stretch` of batches: these are its `indices`, and the number is of the first.

    For a consumer that takes many small batches without a look at each.
    """

    __slots__ = ()
