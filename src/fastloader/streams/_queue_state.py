"""How many batches of a pass are asked for, made and held, at one moment."""

from typing import NamedTuple

__all__ = ["QueueState"]


class QueueState(NamedTuple):
    """What an engine and the stages behind it hold; each adds its own part."""

    num_asked: int = 0
    """Batches that somebody makes, or has made and the consumer has not got."""
    num_ready: int = 0
    """Those of them that are made."""
    num_slots: int = 0
    """Slots of shared memory: free, lent, or under batches that somebody keeps."""
    num_free_slots: int = 0
    slot_bytes: int = 0
    """Size of each slot."""
    num_pinned: int = 0
    """Batches that lie in page-locked memory, or are on their way there."""
    num_copies: int = 0
    """Copies to a device whose sources are still held."""
    most_in_dev_shm: int = 0
    """Batches that may lie in ``/dev/shm`` at once: those of torch's own workers."""

    @property
    def slots_in_use_bytes(self) -> int:
        """Bytes of the slots that are not free."""
        return (self.num_slots - self.num_free_slots) * self.slot_bytes
