"""A loader's statistics at one moment, with the units in their names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fastloader.stats._totals import Totals
from fastloader.streams._queue_state import QueueState

__all__ = ["SourceShare", "StatsSnapshot", "WorkerShare", "add_parts", "make_snapshot"]

_BY_ITSELF = {"workers", "fallbacks", "sources"}
_SUMS = (
    "num_skipped_samples",
    "num_queued_batches",
    "num_ready_batches",
    "num_slots",
    "num_free_slots",
    "slots_in_use_bytes",
    "host_bytes_in_flight",
    "pinned_bytes_in_flight",
    "num_copies",
)
"""What a mixture of loaders has as much of as these have together."""


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one worker has done."""

    worker: int
    """Its number."""
    num_batches: int
    """Batches that it finished."""
    busy_share: float
    """Of the time, from 0 to 1, that it was making batches and not waiting for tasks."""
    cpu_share: float
    """Of the time, that it was computing: over 1 where the dataset has threads of its own. What
    lacks to `busy_share` it waited, for files or for a core."""


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What one source of a mixture gave."""

    name: str
    num_batches: int | None
    """Batches of this source alone; None where batches are mixed of several."""
    num_samples: int
    sample_share: float | None
    """Of all samples that came, from 0 to 1; None if there were none."""
    waited_seconds: float | None
    """Time in ``next`` for its batches, the first ones of each pass included; None where one
    loader reads all sources."""
    own: "StatsSnapshot | None" = None
    """What its loader has measured of itself, where it has one that does: in whichever loop."""


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """What a loader has measured of itself; None where there was nothing to measure.

    The clock starts before each call of ``next`` and stops when the batch can be used. The first
    batch of a pass, the warm-up (those that were made while it was waited for) and the steady
    state are apart; what has no word for one of them is of the steady state.
    """

    num_epochs: int
    """Passes over the data that have begun."""
    num_batches: int
    """Batches that the consumer got."""
    num_samples: int
    """Samples in them: those asked for; where fewer may come (an iterable dataset, or ``on_error="skip"``
    with torch's own collate_fn) those in the first array."""
    num_skipped_samples: int
    """Samples that were left out, with ``on_error="skip"``, since the loader was made."""
    elapsed_seconds: float
    """From asking for an iterator to its latest batch."""
    wait_share: float | None
    """Of the time of the loop, from 0 to 1, that the consumer waited for batches. Below 0.1 the
    loader keeps up; above 0.3 it holds the loop back."""
    first_batch_seconds: float | None
    """From asking for an iterator to the first batch, consumer excluded; median over passes."""
    epoch_gap_seconds: float | None
    """From asking for a batch after the last to having the first of the next pass; median."""
    warm_up_p50_seconds: float | None
    warm_up_max_seconds: float | None
    """Times in ``next`` for batches that were made while the first was waited for."""
    next_p50_seconds: float | None
    next_p95_seconds: float | None
    next_p99_seconds: float | None
    """Times in ``next``, right to 2 %; nothing for batches of data on a device that lie there ready."""
    next_max_seconds: float | None
    next_mean_seconds: float | None
    batches_per_second: float | None
    """Of the loop: what the consumer does between batches counts."""
    samples_per_second: float | None
    batch_bytes: float | None
    """Mean size of a batch, over the first batches of each pass and some of the others."""
    batch_bytes_per_second: float | None
    num_queued_batches: int
    """That somebody makes now, or has made and the consumer has not got."""
    num_ready_batches: int
    """Those of them that are made."""
    num_slots: int
    """Slots of shared memory: free, lent, or under batches that somebody keeps."""
    num_free_slots: int
    slots_in_use_bytes: int
    host_bytes_in_flight: int
    """Batches that are made ahead, in host memory."""
    pinned_bytes_in_flight: int
    """Batches that lie in page-locked memory, or are on their way there."""
    num_copies: int
    """Copies to a device whose sources are still held."""
    workers: tuple[WorkerShare, ...]
    """What each worker process or thread has done that was needed."""
    fallbacks: tuple[str, ...]
    """Where batches come in a slower way than the loader's own, and why."""
    copy_p50_seconds: float | None = None
    copy_max_seconds: float | None = None
    """How long copies of batches took on the device; see `LoaderStats.also_measure`."""
    gpu_share: float | None = None
    """Of the last second or so, that the GPU was busy; see `LoaderStats.also_measure`."""
    memory_bytes: int | None = None
    """Of the process and its workers, shared pages counted once (PSS); see
    `LoaderStats.also_measure`."""
    sources: tuple[SourceShare, ...] = ()
    """What each source of a mixture gave; see `fastloader.MixedLoader.stats`."""

    def as_dict(self, prefix: str = "") -> dict[str, float]:
        """Return the numbers by name, for loggers such as TensorBoard's; what is None is not in.

        Args:
            prefix: Put before each name, such as ``"loader/"``.
        """
        found: dict[str, float] = {}
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if value is not None and field.name not in _BY_ITSELF:
                found[prefix + field.name] = value
        for share in self.workers:
            found[f"{prefix}worker_{share.worker}_busy_share"] = share.busy_share
            found[f"{prefix}worker_{share.worker}_cpu_share"] = share.cpu_share
        for source in self.sources:
            start = f"{prefix}source_{source.name}_"
            for name in ("num_batches", "num_samples", "sample_share", "waited_seconds"):
                if (value := getattr(source, name)) is not None:
                    found[start + name] = value
        found[f"{prefix}num_fallbacks"] = len(self.fallbacks)
        return found

    def __str__(self) -> str:
        """Return a table of name and value."""
        values = self.as_dict()
        width = max(map(len, values))
        lines = [f"{name.ljust(width)}  {value:.6g}" for name, value in values.items()]
        return "\n".join([*lines, *(f"falls back: {reason}" for reason in self.fallbacks)])


def make_snapshot(
    totals: Totals,
    queue: QueueState,
    *,
    num_skipped_samples: int = 0,
    fallbacks: tuple[str, ...] = (),
    **measured: Any,
) -> StatsSnapshot:
    """Return what sums mean.

    Args:
        totals: Of the passes.
        queue: What is under way.
        num_skipped_samples: With ``on_error="skip"``.
        fallbacks: Reasons of slower ways.
        **measured: Fields that were asked for.
    """
    steady, seconds = totals.steady, totals.steady_seconds
    batch_bytes = _ratio(totals.measured_bytes, totals.num_measured_batches)
    batches_per_second = _ratio(steady.count, seconds)
    return StatsSnapshot(
        num_epochs=totals.num_passes,
        num_batches=totals.num_batches,
        num_samples=totals.num_samples,
        num_skipped_samples=num_skipped_samples,
        elapsed_seconds=totals.elapsed_seconds,
        wait_share=_ratio(steady.sum_seconds, seconds),
        first_batch_seconds=totals.first.quantile(0.5),
        epoch_gap_seconds=totals.gaps.quantile(0.5),
        warm_up_p50_seconds=totals.warm_up.quantile(0.5),
        warm_up_max_seconds=totals.warm_up.max_seconds if totals.warm_up.count else None,
        next_p50_seconds=steady.quantile(0.5),
        next_p95_seconds=steady.quantile(0.95),
        next_p99_seconds=steady.quantile(0.99),
        next_max_seconds=steady.max_seconds if steady.count else None,
        next_mean_seconds=_ratio(steady.sum_seconds, steady.count),
        batches_per_second=batches_per_second,
        samples_per_second=_ratio(totals.steady_samples, seconds),
        batch_bytes=batch_bytes,
        batch_bytes_per_second=(
            None
            if batch_bytes is None or batches_per_second is None
            else batch_bytes * batches_per_second
        ),
        num_queued_batches=queue.num_asked,
        num_ready_batches=queue.num_ready,
        num_slots=queue.num_slots,
        num_free_slots=queue.num_free_slots,
        slots_in_use_bytes=queue.slots_in_use_bytes,
        host_bytes_in_flight=int(queue.num_ready * (batch_bytes or 0)),
        pinned_bytes_in_flight=int(queue.num_pinned * (batch_bytes or 0)),
        num_copies=queue.num_copies,
        copy_p50_seconds=totals.copies.quantile(0.5),
        copy_max_seconds=totals.copies.max_seconds if totals.copies.count else None,
        workers=_worker_shares(totals),
        fallbacks=fallbacks,
        sources=_source_shares(totals),
        **measured,
    )


def add_parts(whole: StatsSnapshot, parts: Mapping[str, StatsSnapshot]) -> StatsSnapshot:
    """Return the snapshot of a mixture with those of the loaders that it is made of.

    Args:
        whole: What the mixture has measured.
        parts: Those of its loaders, by name of the source.
    """
    sums = {name: sum(getattr(own, name) for own in parts.values()) for name in _SUMS}
    return replace(
        whole,
        fallbacks=(
            *whole.fallbacks,
            *(f"{name}: {why}" for name, own in parts.items() for why in own.fallbacks),
        ),
        sources=tuple(replace(one, own=parts.get(one.name)) for one in whole.sources),
        **sums,
    )


def _worker_shares(totals: Totals) -> tuple[WorkerShare, ...]:
    measured = zip(
        totals.worker_batches,
        totals.busy_seconds,
        totals.worker_cpu_seconds,
        totals.worker_elapsed_seconds,
        strict=True,
    )
    return tuple(
        WorkerShare(
            number,
            num_batches,
            min(1.0, _ratio(busy, elapsed) or 0.0),
            _ratio(cpu, elapsed) or 0.0,
        )
        for number, (num_batches, busy, cpu, elapsed) in enumerate(measured)
        if busy > 0
    )


def _source_shares(totals: Totals) -> tuple[SourceShare, ...]:
    counts = totals.sources
    num_samples = sum(count.num_samples for count in counts.values())
    is_mixed = not any(count.num_batches for count in counts.values())
    is_read_by_one = not any(count.waited_seconds for count in counts.values())
    return tuple(
        SourceShare(
            name,
            None if is_mixed else count.num_batches,
            count.num_samples,
            _ratio(count.num_samples, num_samples),
            None if is_read_by_one else count.waited_seconds,
        )
        for name, count in counts.items()
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
