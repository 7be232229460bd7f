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
SOON_SECONDS = 0.25
LOOKS_LEFT = 4
"""How often to look at least, until memory is gone that goes as it did."""
LEAST_BYTES = 64 << 20
LARGE_BYTES = 1 << 20
"""Of a batch: what is made ahead of such may fill a small memory before it is time to look."""


class MemoryWatch:
    """Looks now and then whether there is room for once more what is made ahead; warns once.

    Of large batches with the first one, since a worker that finds no room dies within a second, and the
    sooner again the faster memory goes: a loop that keeps its batches may fill it in a few seconds.

    Memory is what the process and its control groups may still take. Shared memory is
    ``/dev/shm``, which is a few megabytes in many containers: only torch's own workers need it
    (``transport="torch"``), and die of a bus error when it is full.
    """

    def __init__(self) -> None:
        self._next_look = time.monotonic() + EVERY_SECONDS
        self._last: tuple[float, int] | None = None
        """When was looked, and how much was left."""
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
        state = queue()
        available_bytes = read_available_bytes(Path("/"))
        self._next_look = now + self._pause(now, available_bytes)
        if not self._has_warned:
            self._has_warned = _warn_of_memory(state, batch_bytes, available_bytes)
        if not self._has_warned_of_shared and state.most_in_dev_shm:
            self._has_warned_of_shared = _warn_of_shared(state, batch_bytes)

    def _pause(self, now: float, available_bytes: int) -> float:
        """Return how long to wait until the next look."""
        last, self._last = self._last, (now, available_bytes)
        if last is None:
            return min(EVERY_SECONDS, SOON_SECONDS)
        going = (last[1] - available_bytes) / max(now - last[0], 1e-9)
        if going <= 0:
            return EVERY_SECONDS
        return min(EVERY_SECONDS, max(SOON_SECONDS, available_bytes / going / LOOKS_LEFT))


def _warn_of_memory(state: QueueState, batch_bytes: float, available_bytes: int) -> bool:
    ahead_bytes = max(state.num_asked * batch_bytes, state.slots_in_use_bytes)
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
