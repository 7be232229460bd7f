"""How many batches of a pass are asked for, made and held, at one moment."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["QueueState", "add_up"]


class QueueState(NamedTuple):
    """What an engine and the stages behind it hold; each adds its own part."""

    num_asked: int = 0
    """Batches that somebody makes, or has made and the consumer has not got."""
    num_ready: int = 0
    """Those of them that are made."""
    num_slots: int = 0
    """Slots of shared memory: free, lent, or under batches that somebody keeps."""
    num_free_slots: int = 0
    slots_in_use_bytes: int = 0
    """Bytes of the slots that are not free."""
    num_pinned: int = 0
    """Batches that lie in page-locked memory, or are on their way there."""
    num_copies: int = 0
    """Copies to a device whose sources are still held."""
    most_in_dev_shm: int = 0
    """Batches that may lie in ``/dev/shm`` at once: those of torch's own workers."""


def add_up(states: Iterable[QueueState]) -> QueueState:
    """Return what several passes have under way together."""
    return QueueState(*map(sum, zip(QueueState(), *states, strict=True)))
