"""A bar for work that takes long, silent where nobody looks."""

import sys
from typing import Literal, TypeAlias

from tqdm import tqdm

__all__ = ["Progress", "ProgressBar", "progress_bar"]

Progress: TypeAlias = bool | Literal["auto"]

_QUIET_SECONDS = 2.0


class ProgressBar(tqdm):  # type: ignore[misc]
    """A progress bar that starts no thread: workers may be forked later."""

    monitor_interval = 0

    def advance(self, count: int) -> None:
        """Add what was done since the last call."""
        self.update(count)

    def reach(self, count: int) -> None:
        """Show that this much is done in all, also by others."""
        self.update(max(0, count - self.n))


def progress_bar(
    total: int | None, progress: Progress, *, what: str = "Preloading", unit: str = " images"
) -> ProgressBar:
    """Return a bar that appears after two seconds.

    Args:
        total: How much there is to do; None if nobody knows.
        progress: Whether to show it; "auto" shows it in a terminal.
        what: What is done.
        unit: What is counted.
    """
    is_wanted = sys.stderr.isatty() if progress == "auto" else progress
    return ProgressBar(
        total=total, desc=what, unit=unit, delay=_QUIET_SECONDS, disable=not is_wanted
    )
