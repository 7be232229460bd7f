"""How far a search may go on this machine with this dataset."""

from dataclasses import dataclass
from typing import Any

from fastloader.machine._machine import Machine
from fastloader.settings._choose import PINNING
from fastloader.settings._inputs import DatasetTraits
from fastloader.settings._traits import describe_dataset
from fastloader.testing._dataset import check_threads
from fastloader.tuning._subject import Subject

__all__ = ["Limits", "find_limits"]

_MOST_WORKERS = 64
_MOST_WAITING = 32
"""Workers that wait for a disk or a network may be more than the CPUs."""

_CHECK_SHARE = 0.2
_LEAST_CHECK_SECONDS = 2.0
"""Of the budget, to find out whether threads can read the dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be tried."""

    max_workers: int
    max_threads: int
    """0 if the dataset cannot be read by threads."""
    memory_bytes: int
    """Of workers and batches under way."""
    has_memory_files: bool
    """Whether there is another transport than torch's."""
    can_pin: bool
    """Whether an accelerator copies from pinned memory."""
    any_order: bool
    """Whether batches may come as they are ready."""


def find_limits(
    subject: Subject,
    machine: Machine,
    *,
    max_workers: int | None,
    memory_bytes: int | None,
    any_order: bool,
    budget_seconds: float,
) -> tuple[Limits, tuple[str, ...]]:
    """Return the limits, and in words what is left out for reasons that a caller may not expect.

    Args:
        subject: What is loaded; its samples are read to see whether threads may do so.
        machine: What the process may use.
        max_workers: By the caller.
        memory_bytes: By the caller.
        any_order: By the caller.
        budget_seconds: Of the search.
    """
    traits = describe_dataset(
        subject.dataset,
        batch_size=subject.batch_size,
        batch_sampler=subject.batch_sampler,
    )
    most = _most_workers(machine, traits) if max_workers is None else max_workers
    notes = []
    process_obstacle = _process_obstacle(machine, traits)
    if process_obstacle is not None:
        notes.append(f"no worker processes: {process_obstacle}")
    max_threads = most
    if subject.is_iterable:
        max_threads = min(1, most)
    elif most > 1 and _may_be_threads(subject):
        seconds = max(_LEAST_CHECK_SECONDS, _CHECK_SHARE * budget_seconds)
        thread_obstacle = process_obstacle or _thread_obstacle(subject.dataset, seconds)
        if thread_obstacle is not None:
            notes.append(f"no threads: {thread_obstacle}")
            max_threads = 0
    limits = Limits(
        max_workers=0 if process_obstacle is not None else most,
        max_threads=max_threads,
        memory_bytes=(
            machine.available_bytes // (2 * machine.local_world_size)
            if memory_bytes is None
            else memory_bytes
        ),
        has_memory_files=machine.has_memory_files,
        can_pin=machine.accelerator in PINNING and not machine.is_daemonic,
        any_order=any_order,
    )
    return limits, tuple(notes)


def _most_workers(machine: Machine, traits: DatasetTraits) -> int:
    if traits.is_iterable:
        return traits.num_shards or 1
    most = min(_MOST_WORKERS, max(_MOST_WAITING, 2 * machine.rank_cpus))
    return most if traits.num_batches is None else min(most, traits.num_batches)


def _may_be_threads(subject: Subject) -> bool:
    return bool(subject.fixed.get("workers", "threads") == "threads")


def _thread_obstacle(dataset: Any, seconds: float) -> str | None:
    """Return what goes wrong where several threads read a dataset, if anything does."""
    check = check_threads(dataset, seconds=seconds)
    return None if check.outcome == "ok" else check.detail


def _process_obstacle(machine: Machine, traits: DatasetTraits) -> str | None:
    if machine.is_daemonic or machine.is_worker:
        return "this process may not start any"
    return traits.tied
