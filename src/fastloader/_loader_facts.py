"""What is settled when a loader is made and stands in none of its options."""

from dataclasses import dataclass, field

from fastloader.engine import SkippedSample

__all__ = ["LoaderFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """What is settled when a loader is made and stands in none of its options."""

    chose_workers: bool
    """Whether their number is automatic."""
    chose_persistence: bool
    """Whether it is automatic that workers live on."""
    budget_bytes: int
    """Bound of the memory that batches ahead of the consumer may take."""
    skipped: list[SkippedSample] = field(default_factory=list)
    """Takes the samples that are left out, in all epochs."""
