"""What the next pass over resident data begins with, gathered while this one ends."""

import os
from collections import deque
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastloader.datasets._resident import ResidentData
from fastloader.direct import uncaptured
from fastloader.engine import RESIDENT_SHARE, MergedRun, RowBytes, merged_bytes_on
from fastloader.sampling._drawn import DrawnBatches
from fastloader.sampling._foretelling import Foretell
from fastloader.sampling._uploaded import UploadedOrder
from fastloader.stages import has_streams, map_tensors, recorded, side_stream
from fastloader.typing import Batch

__all__ = ["NextStart"]

LEAST_SECONDS = 0.01
"""That batches gathered together lasted: with less, turns for the interpreter cost the loop what this saves."""


class _Gathered(NamedTuple):
    indices: npt.NDArray[np.int64]
    resident: ResidentData
    batch: Batch
    event: Any
    """Passes when the batch is there."""


class NextStart:
    """Gathers what the next pass over resident data asks for first, when the last batches of one are there.

    Such a batch is a function of the copy on the device and of the indices, and of nothing else. So
    it is right, whatever has happened since, if the next pass asks the same copy for the same indices;
    if not, it is let go of, and nothing is gathered ahead any more. A thread gathers, on the stream for copies.

    It takes the place of the batches that a pass has ahead of the loop: those end with the pass.

    **Processes:** the one that uses the device; a forked child uses nothing that its parent has gathered.
    **Threads:** that of `executor` gathers; one thread at a time calls the methods.

    Args:
        device: An accelerator, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._is_wanted = has_streams(device)
        self._num_ends = 0
        self._noted_at = perf_counter()
        self._is_there: Any = (
            None  # event by which the data is there: some was gathered before it
        )
        self._pid = os.getpid()
        self._job: Future[None] | None = None
        self._gathered: SimpleQueue[_Gathered | None] = SimpleQueue()

    def take(self, resident: ResidentData, indices: Any) -> Batch | None:
        """Return the first batch of a pass, for the current stream, or None if it is to be gathered now.

        Args:
            resident: What it is gathered from.
            indices: Of all its samples.
        """
        job, self._job = self._job, None
        # One that has not begun never will: its thread is at something else.
        if job is None or self._pid != os.getpid() or job.cancel():
            return None
        gathered = self._gathered.get()  # which no signal breaks
        if gathered is None or not _is_for(gathered, resident, indices):
            self._is_wanted = False
            return None
        current = self._module.current_stream(self._device)
        current.wait_event(gathered.event)
        return map_tensors(gathered.batch, lambda tensor: recorded(tensor, current))

    def note_made(
        self,
        resident: ResidentData,
        order: UploadedOrder,
        row_bytes: RowBytes,
        foretell: Foretell,
        executor: Executor,
    ) -> None:
        """Be told that batches were made; if they are the last of a pass but the first, begin the next one.

        Args:
            resident: What they were gathered from.
            order: What is left of the pass.
            row_bytes: From which the size of a first call is told.
            foretell: Tells the order of the next pass.
            executor: Of the thread.
        """
        noted_at, self._noted_at = self._noted_at, perf_counter()
        lasted = self._noted_at - noted_at
        if not self._is_wanted or lasted < LEAST_SECONDS or order.next_length():
            return
        self._num_ends += 1
        if self._num_ends == 1:
            self._is_there = self._module.Event()
            self._is_there.record(self._module.current_stream(self._device))
            return
        self._pid, self._gathered = os.getpid(), SimpleQueue()
        gathered_to = self._gathered

        def gather() -> None:
            gathered = None
            try:
                if (following := foretell()) is not None:
                    gathered = self._gather(resident, following[1], row_bytes)
            finally:
                gathered_to.put(gathered)

        with suppress(RuntimeError):  # the executor has ended with the loader
            self._job = executor.submit(gather)

    def _gather(
        self, resident: ResidentData, order: DrawnBatches, row_bytes: RowBytes
    ) -> _Gathered:
        side = side_stream(self._module, self._device)
        # The loop may be capturing a graph meanwhile.
        with uncaptured(), self._module.stream(side):
            side.wait_event(self._is_there)
            call = _OneCall(resident, self._device)
            uploaded = UploadedOrder(order, self._device)
            merged = next(MergedRun(call, uploaded, deque(), row_bytes))
            event = self._module.Event()
            event.record(side)
        return _Gathered(np.asarray(call.indices), resident, merged.batch, event)


class _OneCall:
    """Makes a batch, and keeps what it was asked for."""

    def __init__(self, resident: ResidentData, device: torch.device) -> None:
        self._resident = resident
        self.most_bytes = self.first_bytes = merged_bytes_on(device, RESIDENT_SHARE)
        self.indices: Any = None

    def make(self, indices: Any, _number: int, /) -> Batch:
        self.indices = indices
        return self._resident.take(indices)

    def close(self) -> None:
        """Do nothing: the data stays."""


def _is_for(gathered: _Gathered, resident: ResidentData, indices: Any) -> bool:
    is_same = gathered.resident is resident
    return is_same and np.array_equal(gathered.indices, np.asarray(indices))
