"""A warning before memory runs out, with what to lower."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from fastloader._machine import read_available_bytes
from fastloader._queue_state import QueueState

__all__ = ["MemoryWatch"]

logger = logging.getLogger("fastloader")

EVERY_SECONDS = 10.0
LEAST_BYTES = 64 << 20


class MemoryWatch:
    """Looks now and then whether there is room for once more what is made ahead; warns once."""

    def __init__(self) -> None:
        self._next_look = time.monotonic() + EVERY_SECONDS
        self._has_warned = False

    def look(self, queue: Callable[[], QueueState], batch_bytes: float) -> None:
        """Look, if it is time to.

        Args:
            queue: Tells what is under way.
            batch_bytes: Mean size of a batch.
        """
        now = time.monotonic()
        if self._has_warned or now < self._next_look:
            return
        self._next_look = now + EVERY_SECONDS
        state = queue()
        ahead_bytes = max(state.num_asked * batch_bytes, state.slots_in_use_bytes)
        available_bytes = read_available_bytes(Path("/"))
        if available_bytes >= max(ahead_bytes, LEAST_BYTES):
            return
        self._has_warned = True
        logger.warning(
            "Memory is running out: %.0f MB are left to this process and its control group, and "
            "%d batches ahead take %.0f MB. Lower prefetch_factor, num_workers or batch_size, or "
            "the size of a cache.",
            available_bytes / 1e6,
            state.num_asked,
            ahead_bytes / 1e6,
        )
