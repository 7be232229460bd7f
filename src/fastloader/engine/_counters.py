"""What a run counts while it goes: read by whoever wants to know why a loader is slow."""

from dataclasses import dataclass, field

__all__ = ["RunCounters"]


@dataclass(slots=True)
class RunCounters:
    """Sums over one pass over the data, so far.

    **Threads:** written by the consumer's thread alone; reading needs no lock.
    """

    waited_seconds: float = 0.0
    """Time that the consumer stood waiting for workers; 0 without workers."""
    num_batches: int = 0
    """Batches handed out."""
    num_bytes: int = 0
    """Bytes of the slots that these lay in; 0 where they came another way."""
    num_made_here: int = 0
    """Batches that could not be sent and were made in this process instead."""
    busy_seconds: list[float] = field(default_factory=list)
    """Time that each worker spent on making batches, by its number."""
