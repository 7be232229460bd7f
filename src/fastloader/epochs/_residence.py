"""Keeps the data of a loader on its device, where the caller asks for it and it can be."""

import logging
from concurrent.futures import Executor
from functools import partial
from typing import Any

import torch

from fastloader.datasets._resident import (
    NotResidentError,
    ResidentData,
    copied_parts,
    is_copy_alone,
    make_resident,
)
from fastloader.engine import (
    RESIDENT_SHARE,
    Deliveries,
    FetchPlan,
    MergedRun,
    RowBytes,
    merged_bytes_on,
)
from fastloader.epochs._next_start import NextStart
from fastloader.inspection._fingerprint import fingerprint
from fastloader.randomness._seeding import DrawScope, draw_scope
from fastloader.sampling._drawn import DrawnBatches
from fastloader.sampling._foretelling import Foretell
from fastloader.sampling._uploaded import UploadedOrder
from fastloader.stages import BatchStream, ResidentStream
from fastloader.typing import Batch

__all__ = ["Residence"]

logger = logging.getLogger("fastloader")


class Residence:
    """The data of one loader on a device; loaders over the same data share one copy.

    **Processes:** belongs to the loader, in the process that uses the device.
    """

    def __init__(self) -> None:
        self._kept: ResidentData | None = None
        self._state: Any = None
        self._row_bytes = RowBytes()
        self._next_start: NextStart | None = None
        self.obstacle: str | None = None
        """Why the data is not on the device, though it was asked for."""

    def open(
        self,
        plan: FetchPlan,
        device: torch.device | None,
        order: DrawnBatches,
        scope: DrawScope,
        deliveries: Deliveries,
        *,
        is_asked: bool,
        foretell: Foretell | None,
        executor: Executor,
    ) -> BatchStream | None:
        """Return the batches of an epoch, or None if they must be made in another way.

        Args:
            plan: What to read.
            device: Where to; None is the CPU.
            order: The batches, one after the other.
            scope: Base seed and epoch.
            deliveries: Takes what became of them.
            is_asked: Whether the caller has asked for it, and so is told why not.
            foretell: Tells the order of the next pass; None where that is not to be known.
            executor: Of a thread that may begin with it.
        """
        copied = plan.dataset if plan.batched is None else copied_parts(plan.batched)
        state = (fingerprint(copied), device)
        if self._kept is None or state != self._state:
            self._kept = self._next_start = None  # before the new copy takes memory too
            try:
                self._kept, self.obstacle = _move(plan, device), None
            except NotResidentError as obstacle:
                if is_asked:
                    self._tell(
                        str(obstacle), logging.INFO if device is None else logging.WARNING
                    )
                return None
            self._state, self._row_bytes = state, RowBytes()
            if device is not None and plan.batched is not None and is_copy_alone(plan.batched):
                self._next_start = NextStart(device)
        if device is None:
            return None
        kept, start = self._kept, self._next_start
        taker, uploaded = _Taker(kept, scope, device, start), UploadedOrder(order, device)
        run = MergedRun(taker, uploaded, deliveries, self._row_bytes)
        if start is None or foretell is None:
            return ResidentStream(run, device)
        note_made = partial(
            start.note_made, kept, uploaded, self._row_bytes, foretell, executor
        )
        return ResidentStream(run, device, note_made)

    def _tell(self, obstacle: str, level: int) -> None:
        if self.obstacle != obstacle:
            self.obstacle = obstacle
            logger.log(level, "resident='device' has no effect: %s.", obstacle)


def _move(plan: FetchPlan, device: torch.device | None) -> ResidentData:
    """Copy the data to the device.

    Raises:
        NotResidentError: If options or dataset rule it out, or it does not fit.
    """
    if device is None:
        raise NotResidentError("batches stay on the CPU")
    if plan.batch_transform is not None:
        raise NotResidentError(
            "batch_transform works in host memory (device_transform would not)"
        )
    if plan.batched is None:
        raise NotResidentError("the dataset makes samples one by one, not whole batches")
    return make_resident(plan.batched, device)


class _Taker:
    """Makes batches of data on a device."""

    def __init__(
        self,
        resident: ResidentData,
        scope: DrawScope,
        device: torch.device,
        start: NextStart | None,
    ) -> None:
        self._resident = resident
        self._scope = scope
        self._start = start
        self.most_bytes = self.first_bytes = merged_bytes_on(device, RESIDENT_SHARE)

    def make(self, indices: Any, _number: int, /) -> Batch:
        start, self._start = self._start, None
        if start is not None and (batch := start.take(self._resident, indices)) is not None:
            return batch
        with draw_scope(self._scope):
            return self._resident.take(indices)

    def close(self) -> None:
        """Do nothing: the data stays for the next epoch."""
