"""One way to run a loader, as the search of `tune` compares them."""

from dataclasses import dataclass, fields
from typing import Any

from fastloader.settings._settings import LoaderSettings, Transport, Workers

__all__ = ["SEARCHED", "Candidate"]

_PROCESS_BYTES = 256 << 20
"""Memory set aside for a worker process: an interpreter with torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Values of the options that are searched."""

    num_workers: int
    workers: Workers
    prefetch_factor: int | None
    """None without workers."""
    transport: Transport
    pin_memory: bool
    in_order: bool

    @classmethod
    def of(cls, settings: LoaderSettings) -> "Candidate":
        """Return the part of a loader's settings that is searched."""
        return cls(**{name: getattr(settings, name) for name in SEARCHED})

    def options(self) -> dict[str, Any]:
        """Return the values as options of a `FastLoader`."""
        return {name: getattr(self, name) for name in SEARCHED}

    def label(self) -> str:
        """Return a short description, with what differs from the usual."""
        if self.num_workers == 0:
            words = ["no workers"]
        else:
            kind = "thread" if self.workers == "threads" else "process"
            plural = "" if self.num_workers == 1 else "es" if kind == "process" else "s"
            words = [f"{self.num_workers} {kind}{plural}"]
            if self.prefetch_factor != 2:
                words.append(f"prefetch {self.prefetch_factor}")
            if self.transport == "torch":
                words.append("torch's transport")
            if not self.in_order:
                words.append("any order")
        if self.pin_memory:
            words.append("pinned")
        return ", ".join(words)

    def memory_bytes(self, batch_bytes: int, pickled_bytes: int) -> int:
        """Return what its workers and the batches under way may take.

        Args:
            batch_bytes: Size of a batch.
            pickled_bytes: Size of the objects that each process may have a copy of; a forked one
                copies those that it looks at.
        """
        processes = self.num_workers if self.workers == "processes" else 0
        # Two more are in the hands of the consumer.
        num_batches = self.num_workers * (self.prefetch_factor or 0) + 2
        return processes * (_PROCESS_BYTES + pickled_bytes) + num_batches * batch_bytes


SEARCHED = tuple(field.name for field in fields(Candidate))
"""Names of the options that are searched."""
