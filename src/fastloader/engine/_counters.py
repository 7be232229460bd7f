"""What a run counts while it goes: read by whoever wants to know why a loader is slow."""

from dataclasses import dataclass, field, replace

__all__ = ["RunCounters"]


@dataclass(slots=True)
class RunCounters:
    """Sums over one pass over the data, so far.

    **Threads:** written by the consumer's thread, or each place of a worker by its thread;
    reading needs no lock.
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
    """Time that each worker spent between taking a task and answering it, by its number."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Computing in that time: the rest was waiting, for files or for a core."""
    made_batches: list[int] = field(default_factory=list)
    """Batches that each worker made; of those that several made, it finished them."""

    def make_room(self, num_workers: int) -> None:
        """Make room for the notes of workers, before these start.

        Args:
            num_workers: The most that there may be.
        """
        num_more = num_workers - len(self.busy_seconds)
        self.busy_seconds.extend([0.0] * num_more)
        self.cpu_seconds.extend([0.0] * num_more)
        self.made_batches.extend([0] * num_more)

    def copy(self) -> "RunCounters":
        """Return the counters as they are now."""
        return replace(
            self,
            busy_seconds=self.busy_seconds.copy(),
            cpu_seconds=self.cpu_seconds.copy(),
            made_batches=self.made_batches.copy(),
        )

    def add_work(self, worker: int, busy_seconds: float, cpu_seconds: float) -> None:
        """Add what a worker has done since it told last."""
        self.busy_seconds[worker] += busy_seconds
        self.cpu_seconds[worker] += cpu_seconds
