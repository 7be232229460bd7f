"""A warning before memory runs out, with what to lower."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from fastloader.machine._machine import read_available_bytes, read_shared_bytes
from fastloader.streams._queue_state import QueueState

__all__ = ["MemoryWatch"]

logger = logging.getLogger("fastloader")

EVERY_SECONDS = 10.0
LEAST_BYTES = 64 << 20
LARGE_BYTES = 1 << 20
"""Of a batch: what is made ahead of such may fill a small memory before it is time to look."""


class MemoryWatch:
    """Looks now and then whether there is room for once more what is made ahead; warns once.

    Of large batches with the first one, since a worker that finds no room dies within a second.

    Memory is what the process and its control groups may still take. Shared memory is
    ``/dev/shm``, which is a few megabytes in many containers: only torch's own workers need it
    (``transport="torch"``), and die of a bus error when it is full.
    """

    def __init__(self) -> None:
        self._next_look = time.monotonic() + EVERY_SECONDS
        self._has_seen_large = False
        self._has_warned = False
        self._has_warned_of_shared = False

    def look(self, queue: Callable[[], QueueState], batch_bytes: float) -> None:
        """Look, if it is time to.

        Args:
            queue: Tells what is under way.
            batch_bytes: Size of a batch.
        """
        now = time.monotonic()
        is_first_large = batch_bytes >= LARGE_BYTES and not self._has_seen_large
        if now < self._next_look and not is_first_large:
            return
        self._has_seen_large |= is_first_large
        self._next_look = now + EVERY_SECONDS
        state = queue()
        if not self._has_warned:
            self._has_warned = _warn_of_memory(state, batch_bytes)
        if not self._has_warned_of_shared and state.most_in_dev_shm:
            self._has_warned_of_shared = _warn_of_shared(state, batch_bytes)


def _warn_of_memory(state: QueueState, batch_bytes: float) -> bool:
    ahead_bytes = max(state.num_asked * batch_bytes, state.slots_in_use_bytes)
    available_bytes = read_available_bytes(Path("/"))
    if available_bytes >= max(ahead_bytes, LEAST_BYTES):
        return False
    logger.warning(
        "Memory is running out: %.0f MB are left to this process and its control group, and %d "
        "batches ahead take %.0f MB. Lower prefetch_factor, num_workers or batch_size, or the "
        "size of a cache.",
        available_bytes / 1e6,
        state.num_asked,
        ahead_bytes / 1e6,
    )
    return True


def _warn_of_shared(state: QueueState, batch_bytes: float) -> bool:
    free_bytes = read_shared_bytes()
    if free_bytes is None or free_bytes >= state.most_in_dev_shm * batch_bytes:
        return False
    logger.warning(
        "Shared memory is running out: %.0f MB are left in /dev/shm, and the batches that torch's "
        "workers may put there take %.0f MB. Leave transport out, which needs none of it, lower "
        "prefetch_factor or num_workers, or give the container more (--shm-size).",
        free_bytes / 1e6,
        state.most_in_dev_shm * batch_bytes / 1e6,
    )
    return True
