"""What settings are chosen from, beside the machine: the dataset, and what the caller gave."""

from typing import Any, NamedTuple

from fastloader.settings._settings import Auto, LoaderSettings, Transport, Workers

__all__ = ["DatasetTraits", "GivenOptions"]


class DatasetTraits(NamedTuple):
    """What settings depend on in a dataset and its sampler."""

    is_iterable: bool
    """Whether it is an `IterableDataset`."""
    batched: bool
    """Whether it makes whole batches in one call, with torch's default collate."""
    wants_workers: bool = False
    """Whether a batch is so much work that it is worth workers, though it is made in one call."""
    is_sequence: bool = False
    """Whether samples lie ready in a list, tuple or range."""
    num_shards: int | None = None
    """Parts that an iterable dataset declares to divide among workers."""
    num_batches: int | None = None
    """Batches of an epoch, if that is known."""
    tied: str | None = None
    """Why the dataset cannot leave this process, if so."""
    on_device: bool = False
    """Whether it holds tensors of an accelerator."""

    @property
    def has_ready_samples(self) -> bool:
        """Whether making a batch is little more than a copy."""
        return self.is_sequence or (self.batched and not self.wants_workers)


class GivenOptions(NamedTuple):
    """What the caller gave."""

    num_workers: int | Auto = "auto"
    prefetch_factor: int | Auto | None = "auto"
    persistent_workers: bool | Auto = "auto"
    multiprocessing_context: str | Auto | None = "auto"
    """Name of the start method."""
    timeout: float = 0
    pin_memory: bool | Auto = "auto"
    transport: Transport | Auto = "auto"
    device: str | None = None
    workers: Workers | Auto = "auto"
    in_order: bool | Auto = "auto"
    resident: str | None = None
    has_other_iterators: bool = False
    """Whether torch's own iterators, or those of another class, read the dataset."""
    num_workers_override: int | None = None
    """Stands in for the automatic number of workers."""
    has_worker_init_fn: bool = False
    """Whether there is one, which may count on numbers of workers below `num_workers`."""
    suggested: LoaderSettings | str | None = None
    """What to take for options left open, or why there is nothing though it was asked for."""

    @property
    def measured(self) -> LoaderSettings | None:
        """What is to be taken for options left open, if anything."""
        return self.suggested if isinstance(self.suggested, LoaderSettings) else None

    @property
    def leaves_number_open(self) -> bool:
        """Whether neither the caller nor the environment says how many workers there are."""
        return self.num_workers == "auto" and self.num_workers_override is None

    def suggestion(self, name: str) -> tuple[Any, str] | None:
        """Return what is to be taken for an option left open, and why; None if nothing is.

        Args:
            name: Of the option.
        """
        measured = self.measured
        if measured is None:
            return None
        return getattr(measured, name), measured.reasons[name]
