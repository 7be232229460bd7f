"""Lets a CUDA device read large rows of the data by itself, where it can."""

from functools import partial
from typing import Any, Protocol

import torch

from fastloader.datasets._direct_rows import DirectRows
from fastloader.direct import locked_memory
from fastloader.engine import RESIDENT_SHARE, RowBytes, merged_bytes_on
from fastloader.stages import move_tensors
from fastloader.tensors._buffers import Allocator, allocating_with
from fastloader.threads._crew import Crew, working_with
from fastloader.threads._standby import Standby
from fastloader.typing import Batch, BatchedDataset

__all__ = ["DirectMaker", "DirectReading", "KeptMaker"]


class DirectReading:
    """What of one loader's data its device reads by itself, kept locked between epochs.

    **Processes:** belongs to the loader, in the process that uses the device.
    """

    def __init__(self) -> None:
        self._rows: DirectRows | None = None
        self.row_bytes = RowBytes()
        """What a sample of those that are kept on the device takes there."""

    @property
    def are_kept(self) -> bool:
        """Whether the device keeps the rows of the last pass."""
        return self._rows is not None and self._rows.are_kept

    @property
    def obstacles(self) -> list[str]:
        """Why the device does not read memory that it might, as far as is known by now."""
        return [] if self._rows is None else self._rows.obstacles

    def open(self, batched: BatchedDataset, device: torch.device) -> DirectRows | None:
        """Return the rows that the device may read, which are being locked from now on.

        Args:
            batched: From `as_batched`.
            device: Where to, with its index.

        Returns:
            None if there are none: they are small, or made by code, or the device is not CUDA's.
        """
        rows = None
        if device.type == "cuda":
            memory_of = partial(locked_memory, device=device)
            rows = DirectRows(batched, memory_of, self._rows)
        # In place of those of before, not after them: what both have stays locked.
        self._rows = rows or None
        if self._rows is not None:
            self._rows.lock_behind()
        return self._rows


class _Maker(Protocol):
    @property
    def most_bytes(self) -> int: ...

    @property
    def first_bytes(self) -> int: ...

    def make(self, indices: Any, number: int, /) -> Batch: ...

    def close(self) -> None: ...


class DirectMaker:
    """Makes batches of `HostRows` where their memory is locked by now, and gathers the others.

    Args:
        rows: Of the dataset.
        device: That reads them.
        maker: Gathers batches.
        allocate: Makes the tensors of what is gathered beside, such as labels.
        crew: Lent to what gathers them.
    """

    def __init__(
        self,
        rows: DirectRows,
        device: torch.device,
        maker: _Maker,
        allocate: Allocator,
        crew: Crew,
    ) -> None:
        self._rows = rows
        self._most_bytes = merged_bytes_on(device)
        self._maker = maker
        self._allocate = allocate
        self._crew = crew

    @property
    def most_bytes(self) -> int:
        """That one call should make: much only on the device, not in host memory."""
        return self._most_bytes if self._rows.is_ready else self._maker.most_bytes

    @property
    def first_bytes(self) -> int:
        """That a call may make however little the one before has made: as where they are gathered."""
        return self._maker.first_bytes

    def make(self, indices: Any, number: int) -> Batch:
        """Return one batch.

        Args:
            indices: Of the samples.
            number: Of the batch in its epoch, from 0.
        """
        if self._rows.is_ready:
            with allocating_with(self._allocate), working_with(self._crew):
                batch = self._rows.take(indices)
            if batch is not None:
                return batch
        return self._maker.make(indices, number)

    def close(self) -> None:
        """End what helps gathering."""
        self._maker.close()


class KeptMaker:
    """Makes batches on the device of rows that are kept there, and copies what is gathered beside.

    Args:
        maker: Of the rows.
        device: That keeps them; batches are made on its current stream.
        standby: Threads that were lent to `maker`, to be given back at the end.
    """

    def __init__(self, maker: DirectMaker, device: torch.device, standby: Standby) -> None:
        self._maker = maker
        self._device = device
        self._standby = standby
        self.most_bytes = self.first_bytes = merged_bytes_on(device, RESIDENT_SHARE)

    def make(self, indices: Any, number: int) -> Batch:
        """Return one batch.

        Args:
            indices: Of the samples.
            number: Of the batch in its epoch, from 0.
        """
        return move_tensors(self._maker.make(indices, number), self._device)

    def close(self) -> None:
        """End what helps gathering."""
        self._maker.close()
        self._standby.give_back()
