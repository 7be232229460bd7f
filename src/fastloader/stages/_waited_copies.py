"""Copies batches to devices that have no streams, one after the other."""

import torch

from fastloader.stages._stream import BatchStream, LostBatchError
from fastloader.stages._tree import move_tensors
from fastloader.streams._queue_state import QueueState
from fastloader.typing import Batch

__all__ = ["WaitedCopies", "has_streams"]


def has_streams(device: torch.device) -> bool:
    """Tell whether torch lets copies to a device be queued beside its work: not for Apple's (``mps``).

    Args:
        device: An accelerator.
    """
    return hasattr(getattr(torch, device.type, None), "Stream")


class WaitedCopies:
    """A stream of the batches of another one, on a device; each call waits for its copy.

    So whatever a batch was copied from may be used again when it is there.

    Args:
        source: Of batches in host memory.
        device: An accelerator, with its index.
    """

    def __init__(self, source: BatchStream, device: torch.device) -> None:
        self._source = source
        self._device = device

    def __next__(self) -> Batch:
        """Return the next batch, on the device.

        Raises:
            StopIteration: At the end.
            LostBatchError: If the batch cannot be copied, by an error of its own ``to`` for instance.
        """
        return self._copied(next(self._source))

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list if it has been made."""
        return list(map(self._copied, self._source.next_if_ready()))

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        return self._source.queue()

    def close(self) -> None:
        """Cancel what is under way."""
        self._source.close()

    def _copied(self, batch: Batch) -> Batch:
        try:
            return move_tensors(batch, self._device, non_blocking=False)
        except Exception as error:
            raise LostBatchError(error) from error
