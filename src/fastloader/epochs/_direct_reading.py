"""Lets a CUDA device read large rows of the data by itself, where it can."""

from functools import partial
from typing import Any, Protocol

import torch

from fastloader.datasets._direct_rows import DirectRows
from fastloader.direct import locked_memory
from fastloader.engine import merged_bytes_on
from fastloader.tensors._buffers import Allocator, allocating_with
from fastloader.threads._crew import Crew, working_with
from fastloader.typing import Batch, BatchedDataset

__all__ = ["DirectMaker", "DirectReading"]

_KEPT_SHARE = 1 / 64
"""Of a device's memory, and a quarter of what is free there, for images that are kept there without being
asked for: as much as batches that are made ahead take."""


class DirectReading:
    """What of one loader's data its device reads by itself, kept locked between epochs.

    **Processes:** belongs to the loader, in the process that uses the device.
    """

    def __init__(self) -> None:
        self._rows: DirectRows | None = None
        self._may_keep = True
        self._is_kept = False

    def is_kept(self, device: torch.device) -> bool:
        """Tell whether a device is to have all of the data that it has read in the passes before.

        Of images that a dataset has decoded, to which nobody writes, if they take little room there when
        this is first asked.

        Args:
            device: With its index.
        """
        rows = self._rows
        if self._may_keep and rows is not None and rows.is_ready:
            self._may_keep = False
            fixed_bytes = rows.fixed_bytes
            self._is_kept = fixed_bytes is not None and fixed_bytes <= _room_to_keep(device)
        return self._is_kept

    def keep_nothing(self) -> None:
        """Be told that the device cannot have it after all."""
        self._is_kept = False

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


def _room_to_keep(device: torch.device) -> int:
    """Return how many bytes may be kept on a device without being asked for."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return int(min(free_bytes / 4, total_bytes * _KEPT_SHARE))
