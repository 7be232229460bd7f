"""Looks at a loader at work and says what makes it slow."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from fastloader._loader import FastLoader
from fastloader._progress_bar import Progress, progress_bar
from fastloader.machine._busy_clock import ThreadTime, read_thread
from fastloader.machine._machine import read_machine
from fastloader.measuring._causes import find_causes
from fastloader.measuring._evidence import Evidence
from fastloader.measuring._finding import HOLDS_BACK, Cause, Finding
from fastloader.measuring._measure import Measurement, measure_loader
from fastloader.measuring._probe import ProbeResult, probe
from fastloader.measuring._subject import Subject

__all__ = ["Diagnosis", "diagnose"]

FINE = 0.1
NUM_SLOWEST = 5
NUM_COPIES = 5


@dataclass(frozen=True)
class Diagnosis:
    """What makes a loader slow, if anything does."""

    findings: tuple[Finding, ...]
    """The dearest cause first; empty for a sound loader."""
    measurement: Measurement
    """Of the loader at work."""
    evidence: Evidence
    """What the findings go by."""
    slowest_samples: tuple[tuple[Any, float], ...]
    """Index and seconds of the slowest samples that were tried."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Of the findings."""
        return tuple(finding.cause for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "is_sound": self.is_sound,
            "findings": [asdict(finding) for finding in self.findings],
            "measurement": self.measurement.as_dict(),
            "slowest_samples": [list(pair) for pair in self.slowest_samples],
        }

    def __str__(self) -> str:
        """Return a verdict, the findings with their remedies, and the slowest samples."""
        lines = [_verdict(self.evidence, self.measurement)]
        for finding in self.findings:
            lines += [
                f"{finding.cause}: {finding.text}",
                f"  write: {finding.remedy}",
            ]
        if self.is_sound:
            lines.append("Nothing to complain about.")
        if self.slowest_samples:
            slowest = ", ".join(
                f"{index} ({seconds * 1e3:.2f} ms)" for index, seconds in self.slowest_samples
            )
            lines.append(f"Slowest samples: {slowest}.")
        return "\n".join(lines)


def diagnose(
    loader: Iterable[Any],
    *,
    step: Callable[[Any], Any] | None = None,
    seconds: float = 5.0,
    progress: Progress = "auto",
) -> Diagnosis:
    """Find out what makes a loader slow.

    The loader is measured at work; then samples are read and collated one by one, in a worker
    if the loader has worker processes, to see what they cost and whether they compute or wait.

    Args:
        loader: Any `DataLoader`, torch's own included, or a `MixedLoader` of datasets that one loader
            reads.
        step: Called with each batch: what the training loop does with it. Without it nothing
            can be said about waiting, since all that the loop does is to wait.
        seconds: For all of it, the start of workers not counted.
        progress: Whether to show a progress bar; "auto" shows it in a terminal.

    Raises:
        SettingsError: If this is no loader, or a mixture of several, `step` cannot be called, `seconds` is not positive, the
            loader gives no batch, or its dataset can be read only once.

    Examples:
        >>> from fastloader import FastLoader
        >>> diagnose(FastLoader(range(64), 8), seconds=0.2).is_sound
        True
    """
    only = Subject(loader).only_loader
    with progress_bar(10, progress, what="Diagnosing", unit="") as bar:
        timed = None if step is None else _TimedStep(step)
        measurement = measure_loader(loader, step=timed, seconds=0.6 * seconds)
        bar.advance(6)
        probed = probe(only, 0.4 * seconds)
        bar.advance(4)
    evidence = _evidence_of(only, measurement, probed, timed)
    slowest = sorted(probed.sample_seconds.items(), key=lambda pair: -pair[1])[:NUM_SLOWEST]
    return Diagnosis(find_causes(evidence), measurement, evidence, tuple(slowest))


class _TimedStep:
    """A step whose time is taken: epochs of one batch have no steady state that would tell it."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        self._step = step
        self._num_steps = 0
        self._seconds = self._queued_seconds = self._queued_wait_seconds = 0.0
        self._ended: ThreadTime | None = None

    def __call__(self, batch: Any) -> None:
        thread, began = read_thread(), time.perf_counter()
        if self._ended is not None:
            self._queued_wait_seconds += thread.since(self._ended).queued_seconds
        self._step(batch)
        self._seconds += time.perf_counter() - began
        self._ended = read_thread()
        self._queued_seconds += self._ended.since(thread).queued_seconds
        self._num_steps += 1

    @property
    def mean_seconds(self) -> float:
        return self._seconds / self._num_steps

    @property
    def queued_mean_seconds(self) -> float:
        """Of a step, for which others had the core."""
        return self._queued_seconds / self._num_steps

    @property
    def queued_wait_mean_seconds(self) -> float:
        """The same between two steps."""
        return self._queued_wait_seconds / self._num_steps


def _evidence_of(
    loader: DataLoader[Any],
    measurement: Measurement,
    probed: ProbeResult,
    timed: _TimedStep | None,
) -> Evidence:
    stats = measurement.stats
    machine = read_machine()
    wait = stats.next_mean_seconds or 0.0
    rate = stats.batches_per_second
    step_seconds = 0.0 if timed is None else timed.mean_seconds
    num_samples = stats.num_samples / stats.num_batches
    slow = {
        index: seconds
        for index, seconds in probed.sample_seconds.items()
        if seconds > 10 * probed.median_seconds
    }
    is_fast = isinstance(loader, FastLoader) and not stats.fallbacks
    device = getattr(loader, "device", None)
    return Evidence(
        cpus=machine.granted_cpus,
        # Automatic workers that wait for storage may be more than the loader says.
        num_workers=max(loader.num_workers, len(stats.workers)),
        busy_workers=sum(worker.busy_share for worker in stats.workers) or None,
        uses_threads=getattr(loader, "workers", None) == "threads",
        is_fast=is_fast,
        persistent_workers=bool(loader.persistent_workers),
        has_step=timed is not None,
        wait_share=None if timed is None else stats.wait_share,
        wait_seconds=wait,
        step_seconds=max(0.0, 1 / rate - wait) if rate else step_seconds,
        queued_step_seconds=0.0 if timed is None else timed.queued_mean_seconds,
        queued_wait_seconds=0.0 if timed is None else min(wait, timed.queued_wait_mean_seconds),
        samples_seconds=probed.mean_seconds * num_samples,
        computing_share=probed.computing_share,
        collate_seconds=probed.collate_seconds,
        transform_seconds=probed.transform_seconds,
        device_transform_seconds=probed.device_transform_seconds,
        order_seconds=probed.order_seconds,
        has_own_collate=not any(
            loader.collate_fn is torchs for torchs in (default_collate, default_convert)
        ),
        slow_share=sum(slow.values()) / sum(probed.sample_seconds.values()),
        slow_indices=tuple(sorted(slow, key=lambda index: -slow[index])),
        threads_per_worker=probed.num_threads,
        slowdown=probed.slowdown,
        batch_bytes=stats.batch_bytes or 0.0,
        epoch_gap_seconds=stats.epoch_gap_seconds,
        epoch_seconds=stats.elapsed_seconds / stats.num_epochs
        - (stats.first_batch_seconds or 0.0)
        + step_seconds,
        fallbacks=stats.fallbacks,
        accelerator=machine.accelerator,
        pins_memory=bool(loader.pin_memory) or device is not None,
        copy_seconds=_copy_seconds(stats.batch_bytes) if device is not None else None,
    )


def _copy_seconds(batch_bytes: float | None) -> float | None:
    """Return what copying a batch to the device takes by its events; the least of a few."""
    if not batch_bytes or not torch.cuda.is_available():
        return None
    host = torch.zeros(int(batch_bytes), dtype=torch.uint8, pin_memory=True)
    make_event: Any = torch.cuda.Event
    spent: list[float] = []
    for _ in range(NUM_COPIES):
        began = make_event(enable_timing=True)
        ended = make_event(enable_timing=True)
        began.record()
        host.to("cuda", non_blocking=True)
        ended.record()
        ended.synchronize()
        spent.append(began.elapsed_time(ended) / 1e3)
    return min(spent)


def _verdict(evidence: Evidence, measurement: Measurement) -> str:
    wait_share = evidence.wait_share
    if not evidence.has_step:
        return "No step was given, so waiting is not judged."
    if wait_share is None:
        stats = measurement.stats
        return (
            "Epochs are too short to judge waiting."
            if stats.num_epochs > 1
            else f"Too few batches came in the time to judge waiting ({stats.num_batches}): "
            "give it more seconds."
        )
    judged = (
        "loading keeps up"
        if wait_share < FINE
        else "worth a look"
        if wait_share <= HOLDS_BACK
        else "loading holds the loop back"
    )
    return f"The loop waits for {wait_share:.0%} of its time: {judged}."
