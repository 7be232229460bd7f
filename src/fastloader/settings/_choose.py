"""From facts and what the caller gave to all settings but number and start of workers; pure."""

from typing import Any

from fastloader.machine._machine import Machine
from fastloader.settings._inputs import DatasetTraits, GivenOptions
from fastloader.settings._settings import Transport, Workers

__all__ = [
    "GIVEN",
    "NO_WORKERS",
    "PINNING",
    "choose_kind",
    "choose_options",
    "choose_residence",
]

PINNING = frozenset({"cuda", "xpu"})
"""Accelerators that copy faster from page-locked memory; on ``mps`` torch refuses it."""

GIVEN = "given"
"""The reason of a value that the caller wrote."""

NO_WORKERS = "only matters with workers"
"""The reason of a value where there are none."""


def _choose_prefetch_factor(given: GivenOptions, has_workers: bool) -> tuple[int | None, str]:
    if not has_workers:
        return None, NO_WORKERS
    if given.prefetch_factor not in {"auto", None}:
        return given.prefetch_factor, GIVEN  # type: ignore[return-value]
    suggestion = given.suggestion("prefetch_factor")
    if suggestion is not None and suggestion[0] is not None:
        return suggestion
    reason = "one batch under way and one ready for each worker, more while they are tiny"
    return 2, f"{reason} or take unlike times"


def _choose_persistence(
    machine: Machine, given: GivenOptions, has_workers: bool
) -> tuple[bool, str]:
    if not has_workers:
        return False, NO_WORKERS
    if given.persistent_workers != "auto":
        return given.persistent_workers, GIVEN
    if given.has_other_iterators or _choose_transport(machine, given)[0] == "torch":
        return False, "two passes at once would share one iterator of torch's"
    measured = given.measured
    if measured is not None and measured.num_workers > 0:
        return measured.persistent_workers, measured.reasons["persistent_workers"]
    return True, "no epoch waits for workers to start"


def _choose_pinning(
    machine: Machine, traits: DatasetTraits, given: GivenOptions
) -> tuple[bool, str]:
    if given.pin_memory != "auto":
        return given.pin_memory, GIVEN
    obstacle = _find_pinning_obstacle(machine, traits, given)
    if obstacle is not None:
        return False, obstacle
    return given.suggestion("pin_memory") or (
        True,
        f"copies to {machine.accelerator} are faster and overlap with computing",
    )


def _find_pinning_obstacle(
    machine: Machine, traits: DatasetTraits, given: GivenOptions
) -> str | None:
    """Return why page-locked memory would be of no use, if so."""
    if machine.accelerator not in PINNING:
        return "no accelerator that copies from pinned memory"
    if machine.is_worker or machine.is_daemonic:
        return "this process should leave the accelerator alone"
    if traits.on_device:
        return "the dataset is on the device already"
    if given.device == "cpu":
        return "batches stay on the CPU"
    return None


def _choose_transport(machine: Machine, given: GivenOptions) -> tuple[Transport, str]:
    if given.transport != "auto":
        return given.transport, GIVEN
    if machine.has_memory_files:
        return given.suggestion("transport") or (
            "shared",
            "memory is reused from batch to batch",
        )
    return "torch", "this system has no anonymous memory files"


def choose_kind(given: GivenOptions) -> tuple[Workers, str]:
    """Return what workers are, and why so."""
    if given.workers != "auto":
        return given.workers, GIVEN
    return given.suggestion("workers") or ("processes", "any dataset can be read by them")


def _choose_order(given: GivenOptions) -> tuple[bool, str]:
    if given.in_order != "auto":
        return given.in_order, GIVEN
    return given.suggestion("in_order") or (True, "the same batches in each run")


def choose_residence(traits: DatasetTraits, given: GivenOptions) -> tuple[str | None, str]:
    """Return where the data stays, and why there: on the device, or nowhere in particular."""
    if given.resident is None:
        return None, "not asked for"
    if given.device in {None, "cpu"}:
        return None, "batches stay on the CPU"
    if not traits.batched:
        return None, "the dataset makes samples one by one, not whole batches"
    return given.resident, GIVEN


_BATCHED = "the dataset makes whole batches in one call"
_SINGLE = "samples are read one by one and collated"


def choose_options(
    machine: Machine, traits: DatasetTraits, given: GivenOptions, has_workers: bool
) -> dict[str, tuple[Any, str]]:
    """Return value and reason of each setting but number of workers and start method.

    Args:
        machine: What the process may use.
        traits: What the dataset is like.
        given: What the caller gave.
        has_workers: Whether there are any.
    """
    return {
        "workers": choose_kind(given),
        "prefetch_factor": _choose_prefetch_factor(given, has_workers),
        "persistent_workers": _choose_persistence(machine, given, has_workers),
        "timeout": (given.timeout, GIVEN) if has_workers else (0, NO_WORKERS),
        "pin_memory": _choose_pinning(machine, traits, given),
        "transport": _choose_transport(machine, given),
        "in_order": _choose_order(given),
        "device": (None, "not asked for") if given.device is None else (given.device, GIVEN),
        "resident": choose_residence(traits, given),
        "batched": (traits.batched, _BATCHED if traits.batched else _SINGLE),
    }
