"""Statistics of a loader, logged while a block runs."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastloader.errors import SettingsError
from fastloader.stats._recorder import LoaderStats
from fastloader.stats._snapshot import StatsSnapshot

__all__ = ["log_stats"]

logger = logging.getLogger("fastloader")


@contextmanager
def log_stats(
    loader: Any,
    *,
    every_seconds: float = 10.0,
    to: Callable[[StatsSnapshot], Any] | None = None,
) -> Iterator[None]:
    """Log what a loader measures of itself, now and then and at the end of the block.

    If `to` fails, a warning says so and nothing more is logged: the block goes on.

    **Threads:** one, which ends with the block.

    Args:
        loader: A `FastLoader`, or a `MixedLoader`.
        every_seconds: How often; more than 0.
        to: Called with each snapshot, in that thread; None writes a line to the logger
            ``fastloader`` at level INFO.

    Raises:
        SettingsError: If an argument is not of this kind.

    Examples:
        >>> from fastloader import FastLoader
        >>> loader = FastLoader(range(8), 4)
        >>> with log_stats(loader, to=lambda snapshot: print(snapshot.num_batches)):
        ...     batches = list(loader)
        2
    """
    stats = _stats_of(loader)
    report = _write_line if to is None else to
    if not callable(report):
        raise SettingsError(f"to should be a function or None, but got {to!r}.")
    if not every_seconds > 0:
        raise SettingsError(
            f"every_seconds should be a number over 0, but got {every_seconds!r}."
        )
    is_over = threading.Event()

    def watch() -> None:
        try:
            is_last = False
            while not is_last:
                is_last = is_over.wait(min(every_seconds, threading.TIMEOUT_MAX))
                report(stats.snapshot())
        except Exception:
            logger.warning("Statistics are not logged any more.", exc_info=True)

    thread = threading.Thread(target=watch, name="fastloader-log-stats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _stats_of(loader: Any) -> LoaderStats:
    stats = getattr(loader, "stats", None)
    if not isinstance(stats, LoaderStats):
        raise SettingsError(
            f"log_stats needs a FastLoader or a MixedLoader, but got {type(loader).__name__}."
        )
    return stats


def _write_line(snapshot: StatsSnapshot) -> None:
    names = ("wait_share", "next_p50_seconds", "next_p95_seconds", "samples_per_second")
    values = snapshot.as_dict()
    told = [f"{name} {values[name]:.4g}" for name in names if name in values]
    logger.info("Loading: %s", ", ".join([f"num_batches {snapshot.num_batches}", *told]))
