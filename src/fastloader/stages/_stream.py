"""What a stage takes and gives: batches on demand, or those that are ready."""

from typing import Protocol

from fastloader.streams._queue_state import QueueState
from fastloader.typing import Batch

__all__ = ["BatchStream", "HostStream", "LostBatchError"]


class LostBatchError(Exception):
    """A stage could not hand on a batch that it had got: the consumer is past it.

    Args:
        reason: What the consumer is to be told.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


class BatchStream(Protocol):
    """Batches of one pass over the data."""

    def __next__(self) -> Batch:
        """Return the next batch, waiting for it; StopIteration at the end."""
        ...

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list, or an empty list if it is not there yet."""
        ...

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        ...

    def close(self) -> None:
        """Cancel what is under way; harmless when repeated."""
        ...


class HostStream(BatchStream, Protocol):
    """Batches as they were made, in host memory."""

    @property
    def is_on_demand(self) -> bool:
        """Whether they are made by the call that asks for them: the next one is always ready."""
        ...
