"""One pass over the data in the calling process, several small batches at a time."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastloader.engine._delivery import Deliveries, Delivery, UncutDeliveries
from fastloader.engine._fetch import AllSkippedError
from fastloader.sampling._compact import IndexArray, IndexList
from fastloader.sampling._drawn import Drawn, DrawnBatches, Stretch
from fastloader.sampling._uploaded import UploadedOrder, join_uploaded
from fastloader.streams._on_demand import OnDemand
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._rows import CUT_AT_ONCE, Merged, count_bytes, has_rows
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.typing import Batch

__all__ = [
    "MERGED_BYTES",
    "RESIDENT_SHARE",
    "Maker",
    "MergedRun",
    "RowBytes",
    "merged_bytes_on",
]

MERGED_BYTES = 64 << 20
"""Of batches made in one call: far more than what each call costs by itself, also where a training
loop takes turns with it for the interpreter, and little of a device's memory."""

DEVICE_SHARE = 1 / 256
"""Of a device's memory, for batches that are gathered there in one call: on one of 141 GB, 550 MB.
A training loop of 2 ms a batch waits half a millisecond for each call. Two or three of them are there at once."""

RESIDENT_SHARE = 1 / 64
"""The same of data that lies there: such batches are made only when they are asked for, in a fraction of a millisecond."""

MOST_MERGED = 256

_new_delivery = partial(tuple.__new__, Delivery)
"""Of the fields in a tuple, in half the time: the class has a function of Python between."""


def merged_bytes_on(device: torch.device, share: float = DEVICE_SHARE) -> int:
    """Return how many bytes of batches to gather on a device in one call, `MERGED_BYTES` or more.

    Args:
        device: An accelerator, with its index.
        share: Of its memory, for each call.
    """
    if device.type != "cuda":
        return MERGED_BYTES
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return max(MERGED_BYTES, int(share * total_bytes))


class Maker(Protocol):
    """Makes batches, each by itself."""

    @property
    def most_bytes(self) -> int:
        """That one call should make, `MERGED_BYTES` or more."""
        ...

    @property
    def first_bytes(self) -> int:
        """That a call may make however little the one before has made; up to `most_bytes`."""
        ...

    def make(self, indices: Any, number: int, /) -> Batch:
        """Return one batch."""
        ...

    def close(self) -> None:
        """End what helps making batches."""
        ...


class RowBytes:
    """What a sample took in the batches of the last pass; kept by whoever makes the passes."""

    latest = 0
    """0 where that is not known."""


class MergedRun(OnDemand):
    """A stream of batches that are made and copied several at once, while they are small.

    A batch of 256 small images is gathered faster than Python can ask for the next one. Only
    for datasets whose samples do not depend on which others are in the batch.

    Args:
        maker: Makes the batches, of a dataset with `get_batch`.
        order: The batches to make, one after the other.
        deliveries: Takes what became of them.
        row_bytes: From which the size of the first call is told, and which is kept up to date. Without
            it that makes one batch, for which nobody waits long.
    """

    def __init__(
        self,
        maker: Maker,
        order: DrawnBatches | UploadedOrder,
        deliveries: Deliveries,
        row_bytes: RowBytes | None = None,
    ) -> None:
        self._maker = maker
        self._order = order
        if isinstance(order, DrawnBatches):
            order.makes_lists = False  # which takes longer than all else a small batch costs
        self._deliveries = deliveries
        self._row_bytes = row_bytes or RowBytes()
        self._is_first = True
        self._num_merged = 1
        self._may_merge = True
        self._single: deque[Drawn] = deque()  # batches that are to be read alone

    def __next__(self) -> Merged:
        """Return the next batches in one.

        Raises:
            StopIteration: At the end of the pass.
        """
        while True:
            held_interrupts.hold()  # until they are made: what was drawn is in no other place
            wanted: Sequence[Drawn]
            if self._single:
                wanted = [self._single.popleft()]
            else:
                wanted = self._order.take(self._num_wanted())
                if not wanted:
                    raise StopIteration
            if made := self._make(wanted):
                return made[0]

    def queue(self) -> QueueState:
        """Return nothing under way."""
        return QueueState()

    def close(self) -> None:
        """End the threads that help making batches."""
        self._maker.close()

    def make_less(self) -> None:
        """Make each batch by itself from now on: there is no memory for several."""
        self._num_merged, self._may_merge = 1, False

    def _num_wanted(self) -> int:
        is_first, self._is_first = self._is_first, False
        if is_first and self._row_bytes.latest and isinstance(self._order, UploadedOrder):
            # As much as the last call of the pass before would have made of such batches.
            expected_bytes = self._row_bytes.latest * self._order.next_length()
            return self._clipped(self._maker.most_bytes // max(1, expected_bytes))
        return self._num_merged

    def _make(self, wanted: Sequence[Drawn]) -> list[Merged]:
        lengths = _lengths_of(wanted)
        is_single = len(wanted) == 1
        try:
            batch = self._maker.make(_join_indices(wanted), wanted[0].number)
        except Exception as error:
            if is_single:
                self._deliver(wanted, has_batch=False)
                if isinstance(error, AllSkippedError):
                    return []
                raise
            return self._make_singly(wanted)
        num_rows = int(lengths.sum())
        if not has_rows(batch, num_rows):
            self._may_merge = False
            if not is_single:
                return self._make_singly(wanted)
        elif self._may_merge:
            made_bytes = count_bytes(batch)
            self._row_bytes.latest = made_bytes // num_rows
            self._num_merged = self._fitting(made_bytes, len(wanted))
        self._deliver(wanted, has_batch=True)
        return [Merged(batch, lengths)]

    def _fitting(self, made_bytes: int, num_made: int) -> int:
        """Return how many batches to make in the next call, given what this one has made."""
        # By and by: each call lasts while the batches of the one before are used up.
        most_bytes = min(self._maker.most_bytes, max(self._maker.first_bytes, 2 * made_bytes))
        return self._clipped(most_bytes * num_made // max(1, made_bytes))

    @staticmethod
    def _clipped(num_batches: int) -> int:
        count = min(max(1, num_batches), MOST_MERGED)
        # Whole cuts: a small rest costs the loop as much as a large one.
        return count if count < CUT_AT_ONCE else count - count % CUT_AT_ONCE

    def _deliver(self, wanted: Sequence[Drawn], *, has_batch: bool) -> None:
        is_uncut = isinstance(self._deliveries, UncutDeliveries)
        if is_uncut and has_batch and isinstance(wanted, Stretch):
            first = wanted.numbers.start
            self._deliveries.append(Delivery(first, wanted, 0, True, None, None))
            return
        numbers: Iterable[int]
        indices: Iterable[Any]
        states: Iterable[bytes | None]
        if isinstance(wanted, Stretch):
            numbers, indices, states = wanted.numbers, wanted.rows(), repeat(None)
        else:
            numbers, indices, states = zip(*wanted, strict=True)
        fields = zip(numbers, indices, repeat(0), repeat(has_batch), states, repeat(None))
        self._deliveries.extend(map(_new_delivery, fields))

    def _make_singly(self, wanted: Sequence[Drawn]) -> list[Merged]:
        # So that an error comes at its batch, and the others come too.
        self.make_less()
        self._single.extend(wanted)
        return []


def _lengths_of(wanted: Sequence[Drawn]) -> npt.NDArray[np.int64]:
    if isinstance(wanted, Stretch):
        return wanted.lengths()
    return np.array([len(drawn.indices) for drawn in wanted])


def _join_indices(wanted: Sequence[Drawn]) -> Any:
    """Return the indices of several batches as those of one."""
    if isinstance(wanted, Stretch):
        return wanted.indices
    parts = [drawn.indices for drawn in wanted]
    if len(parts) == 1:
        return parts[0]
    if (uploaded := join_uploaded(parts)) is not None:
        return uploaded
    if all(isinstance(indices, IndexArray | IndexList) for indices in parts):
        return IndexArray(np.concatenate([indices.array for indices in parts]))
    return [index for indices in parts for index in indices]
