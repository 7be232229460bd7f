"""Where a worker's batches are made: in the slots that they travel in, or elsewhere once somebody keeps them."""

from collections.abc import Sequence

import torch

from fastloader.engine._slot_writer import SlotWriter
from fastloader.shm._arena import ArenaView, SlotPlace
from fastloader.shm._mapping_over import can_map_over
from fastloader.tensors._buffers import BufferPool

__all__ = ["BatchMemory"]

MOST_WRITERS = 64  # kept for slots that come again; a loop that keeps batches gets others


class BatchMemory:
    """Lends the memory of one batch after the other.

    What user's code makes while a batch is made may outlive it: samples that a dataset keeps, the batch before
    for a transform. The slot is written anew as soon as the consumer is done with it. So who still looks at
    something in a slot, when its batch is packed, gets the memory there for good; from then on batches are made in other
    memory, which is used again only when nobody looks at it, and copied to their slots.

    **Processes:** one in each worker.

    Args:
        arena: Of the slots.
    """

    def __init__(self, arena: ArenaView) -> None:
        self._arena = arena
        self._writers: dict[SlotPlace, SlotWriter] = {}
        self.writer = SlotWriter(None)
        """Of the slot in use."""
        self._makes_in_slots = can_map_over()
        self._buffers = BufferPool()

    def begin(self, place: SlotPlace) -> None:
        """Begin a batch, to be packed into a slot.

        Args:
            place: Of the slot.

        Raises:
            OSError: If it cannot be mapped.
        """
        writer = self._writers.get(place)
        if writer is not None:
            writer.begin()
        else:
            if len(self._writers) >= MOST_WRITERS:
                self._writers.clear()
            self._writers[place] = writer = SlotWriter(self._arena.slot(place))
        self.writer = writer

    def forget_writers(self) -> None:
        """Forget the slots so far, which are too small and no longer lent."""
        self._writers.clear()

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor for a part of the batch.

        Args:
            shape: Sizes of all axes.
            dtype: Element type.
        """
        if self._makes_in_slots:
            return self.writer.empty(tuple(shape), dtype)
        return self._buffers(shape, dtype)

    def leave(self, *, batch_stays: bool = False) -> None:
        """Leave the slot in use to whoever gets it next, before the batch in it is told of.

        Args:
            batch_stays: Whether the batch was packed in vain and waits here for a larger slot; else it is dropped.

        Raises:
            SharedMemoryError: If the system gives no memory to who keeps something.
        """
        if self.writer.is_kept():
            self.writer.keep()
            if not batch_stays:
                self._makes_in_slots = False  # who has kept one batch keeps the next ones
            self._writers.clear()
            self._arena.forget_slots()
