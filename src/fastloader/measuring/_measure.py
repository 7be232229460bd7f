"""One loader, measured from outside for some seconds, the same way for any kind."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from fastloader.errors import SettingsError
from fastloader.machine._process_tree import tree_cost, tree_memory_bytes
from fastloader.measuring._subject import Subject
from fastloader.settings._given import check_callable
from fastloader.stats import LoaderStats, PassTally, StatsSnapshot, count_samples

__all__ = ["Measurement", "check_duration", "measure_if_any", "measure_loader"]

MOST_PASSES_WITHOUT_BATCH = 3
SETTLING_SECONDS = 0.05
MOST_SETTLING_SECONDS = 2.0
QUIET_SHARE = 0.3
"""Of a core, that workers with nothing to do may seem to take: their clock ticks in 10 ms."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a loader did while it was measured."""

    stats: StatsSnapshot
    """Times, rates and workers; the first batch, the warm-up and the steady state are apart."""
    cpu_seconds: float
    """Of the process and its workers, the loop and the start of workers included."""
    page_faults: int
    """Of the same."""
    memory_bytes: int
    """Of the same at the end, shared pages counted once (PSS)."""

    def as_dict(self, prefix: str = "") -> dict[str, float]:
        """Return all numbers by name.

        Args:
            prefix: Put before each name.
        """
        own = {
            prefix + field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "stats"
        }
        return {**self.stats.as_dict(prefix), **own}


def measure_loader(
    loader: Any,
    *,
    step: Callable[[Any], Any] | None = None,
    seconds: float = 5.0,
    max_batches: int | None = None,
) -> Measurement:
    """Iterate over a loader as a training loop does, and measure.

    The clock starts before each call of ``next`` and stops when the batch can be used; the time
    for the first batch counts from asking for the iterator. Passes follow each other until the
    time is over, which counts from the first batch.

    Workers that live on still make what they were asked for ahead when the last pass is left. That
    is waited for, up to two seconds, and is part of the CPU time: else the next loader to be
    measured would have to share its cores with them. Nothing of it is there when this loader is
    measured again.

    Args:
        loader: Any `DataLoader`, of torch or of this package, or a `MixedLoader`.
        step: Called with each batch: what the training loop does with it. None does nothing,
            and then all time is waiting.
        seconds: How long to go on; the batch that is under way is waited for.
        max_batches: The most batches.

    Raises:
        SettingsError: If this is no loader, `step` cannot be called, `seconds` is not positive, or
            the loader gives no batch.
    """
    measurement = measure_if_any(loader, step=step, seconds=seconds, max_batches=max_batches)
    if measurement is None:
        raise SettingsError("The loader gave no batch, so there is nothing to measure.")
    return measurement


def check_duration(seconds: float) -> None:
    """Refuse a time in which nothing can be measured.

    Raises:
        SettingsError: If it is not more than 0.
    """
    if not seconds > 0:
        raise SettingsError(f"seconds must be more than 0, but got {seconds}.")


def measure_if_any(
    loader: Any,
    *,
    step: Callable[[Any], Any] | None,
    seconds: float,
    max_batches: int | None = None,
) -> Measurement | None:
    """Do as `measure_loader`, but return None of a loader that gives no batch.

    Raises:
        SettingsError: If this is no loader, `step` cannot be called, or `seconds` is not positive.
    """
    subject = Subject(loader)
    check_callable("step", step)
    check_duration(seconds)
    stats = LoaderStats()
    cost = tree_cost()
    limit = _Limit(seconds, max_batches)
    num_empty = 0
    while not limit.is_reached and num_empty < MOST_PASSES_WITHOUT_BATCH:
        num_before = limit.num_batches
        _run_pass(subject, stats, step, limit)
        num_empty = 0 if limit.num_batches > num_before else num_empty + 1
    if not limit.num_batches:
        return None
    snapshot = stats.snapshot()
    if subject.stats is not None:
        inside = subject.stats.snapshot("epoch")
        snapshot = replace(snapshot, workers=inside.workers, fallbacks=inside.fallbacks)
    if subject.keeps_workers:
        _settle()
    cost = tree_cost() - cost
    return Measurement(
        snapshot, cost.cpu_seconds, cost.page_faults, tree_memory_bytes(os.getpid())
    )


def _settle() -> None:
    """Wait until the process and its workers take hardly any CPU time."""
    deadline = time.perf_counter() + MOST_SETTLING_SECONDS
    before, began = tree_cost().cpu_seconds, time.perf_counter()
    while began < deadline:
        time.sleep(SETTLING_SECONDS)
        after, ended = tree_cost().cpu_seconds, time.perf_counter()
        if after - before <= QUIET_SHARE * (ended - began):
            return
        before, began = after, ended


class _Limit:
    """When to stop."""

    def __init__(self, seconds: float, max_batches: int | None) -> None:
        self._seconds = seconds
        self._max_batches = max_batches
        self._deadline = float("inf")
        self.num_batches = 0
        self.is_reached = False

    def note_batch(self) -> None:
        now = time.perf_counter()
        if not self.num_batches:
            self._deadline = now + self._seconds
        self.num_batches += 1
        self.is_reached = now >= self._deadline or self.num_batches == self._max_batches


def _run_pass(
    subject: Subject,
    stats: LoaderStats,
    step: Callable[[Any], Any] | None,
    limit: _Limit,
) -> None:
    began = time.perf_counter()
    iterator = iter(subject.loader)
    tally = stats.begin_pass(began, num_warm_up=subject.num_ahead)
    try:
        while not limit.is_reached and _take(iterator, tally, subject, step):
            limit.note_batch()
    finally:
        tally.close()
        if callable(close := getattr(iterator, "close", None)):
            close()


def _take(
    iterator: Any, tally: PassTally, subject: Subject, step: Callable[[Any], Any] | None
) -> bool:
    started = time.perf_counter()
    try:
        batch = next(iterator)
    except StopIteration:
        tally.note_end(started)
        return False
    unnamed = batch[1] if subject.has_names else batch
    num_samples = count_samples(unnamed, 1) if subject.has_batches else 1
    tally.note(started, num_samples, unnamed)
    if step is not None:
        step(batch)
    return True
