"""What is settled when a loader is made and stands in none of its options."""

from dataclasses import dataclass, field

from fastloader.engine import SkippedSample
from fastloader.settings._choice import Choice

__all__ = ["LoaderFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """What is settled when a loader is made and stands in none of its options."""

    choice: Choice
    """Fills in what the caller left open."""
    chosen_workers: int | None
    """Their number, where it is automatic."""
    chose_persistence: bool
    """Whether it is automatic that workers live on."""
    chose_prefetch: bool
    """Whether it is automatic how many batches are made ahead."""
    skipped: list[SkippedSample] = field(default_factory=list)
    """Takes the samples that are left out, in all epochs."""

    @property
    def may_fork(self) -> bool:
        """Whether workers may be forked where another start method was chosen and cannot work."""
        machine = self.choice.machine
        return (
            self.choice.given.multiprocessing_context == "auto"
            and machine.start_method == "fork"
            and machine.fork_hazard is None
        )
