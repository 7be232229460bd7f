"""What is settled when a loader is made and stands in none of its options."""

from dataclasses import dataclass, field

from fastloader.engine import SkippedSample

__all__ = ["LoaderFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """What is settled when a loader is made and stands in none of its options."""

    chosen_workers: int | None
    """Their number, where it is automatic."""
    most_workers: int
    """How many there may be then, where they wait more than they compute."""
    may_be_placed: bool
    """Whether batches of a dataset that needs no workers may be made ahead where that is quicker."""
    spare_workers: int
    """How many workers may make them then."""
    chose_persistence: bool
    """Whether it is automatic that workers live on."""
    chose_prefetch: bool
    """Whether it is automatic how many batches are made ahead."""
    may_fork: bool
    """Whether workers may be forked where another start method was chosen and cannot work."""
    budget_bytes: int
    """Bound of the memory that batches ahead of the consumer may take."""
    num_cpus: int
    """That this process may keep busy."""
    skipped: list[SkippedSample] = field(default_factory=list)
    """Takes the samples that are left out, in all epochs."""
