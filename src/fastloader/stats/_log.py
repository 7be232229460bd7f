"""Statistics of a loader, logged while a block runs."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fastloader.stats._recorder import LoaderStats
from fastloader.stats._snapshot import StatsSnapshot

__all__ = ["HasStats", "log_stats"]

logger = logging.getLogger("fastloader")


class HasStats(Protocol):
    """A loader that measures itself."""

    @property
    def stats(self) -> LoaderStats:
        """What it measures."""
        ...


@contextmanager
def log_stats(
    loader: HasStats,
    *,
    every_seconds: float = 10.0,
    to: Callable[[StatsSnapshot], Any] | None = None,
) -> Iterator[None]:
    """Log what a loader measures of itself, now and then and at the end of the block.

    **Threads:** one, which ends with the block.

    Args:
        loader: A `FastLoader`, or a `MixedLoader`.
        every_seconds: How often.
        to: Called with each snapshot, in that thread; None writes a line to the logger
            ``fastloader`` at level INFO.

    Examples:
        >>> from fastloader import FastLoader
        >>> loader = FastLoader(range(8), 4)
        >>> with log_stats(loader, to=lambda snapshot: print(snapshot.num_batches)):
        ...     batches = list(loader)
        2
    """
    report = _write_line if to is None else to
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(every_seconds):
            report(loader.stats.snapshot())

    thread = threading.Thread(target=watch, name="fastloader-log-stats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        report(loader.stats.snapshot())


def _write_line(snapshot: StatsSnapshot) -> None:
    names = ("wait_share", "next_p50_seconds", "next_p95_seconds", "samples_per_second")
    values = snapshot.as_dict()
    told = [f"{name} {values[name]:.4g}" for name in names if name in values]
    logger.info("Loading: %s", ", ".join([f"num_batches {snapshot.num_batches}", *told]))
