"""How long to wait for a batch, and what to say when it does not come."""

import logging
import time
from collections.abc import Callable

from fastloader.errors import WorkerTimeoutError

__all__ = ["Patience"]

logger = logging.getLogger("fastloader")


class Patience:
    """One wait for a batch, from now on.

    Args:
        timeout_seconds: When to give up; 0 waits for ever.
        stall_seconds: When to say where the workers are; twice as long for each time after that.
        whereabouts: Says it.
    """

    def __init__(
        self, timeout_seconds: float, stall_seconds: float, whereabouts: Callable[[], str]
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._stall_seconds = stall_seconds
        self._whereabouts = whereabouts
        self._started = time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Time until `check` has something to say."""
        limit = self._stall_seconds
        if self._timeout_seconds:
            limit = min(limit, self._timeout_seconds)
        return max(0.0, self._started + limit - time.monotonic())

    def check(self) -> None:
        """Warn or give up, if it is time to.

        Raises:
            WorkerTimeoutError: If there was no batch for too long.
        """
        waited = time.monotonic() - self._started
        if self._timeout_seconds and waited >= self._timeout_seconds:
            raise WorkerTimeoutError(
                f"DataLoader timed out after {self._timeout_seconds:g} seconds. "
                f"{self._whereabouts()}"
            )
        if waited >= self._stall_seconds:
            self._stall_seconds *= 2
            logger.warning("No batch for %.0f seconds. %s", waited, self._whereabouts())
