"""From facts and what the caller gave to the settings of a loader; pure."""

from typing import Any

from fastloader.errors import SettingsError
from fastloader.machine._machine import Machine
from fastloader.settings._inputs import DatasetTraits, GivenOptions
from fastloader.settings._settings import LoaderSettings, Transport, Workers
from fastloader.settings._worker_limits import (
    count_that_fit,
    count_waiting,
    count_workers,
    keep_to,
)

__all__ = [
    "GIVEN",
    "PINNING",
    "check_given",
    "choose_most_workers",
    "choose_num_workers",
    "choose_options",
    "choose_spare_workers",
    "choose_start_method",
    "explain_growth",
    "may_be_placed",
    "worker_options",
]

PINNING = frozenset({"cuda", "xpu"})
"""Accelerators that copy faster from page-locked memory; on ``mps`` torch refuses it."""

GIVEN = "given"
"""The reason of a value that the caller wrote."""


def choose_most_workers(
    machine: Machine, traits: DatasetTraits, given: GivenOptions, num_workers: int
) -> int:
    """Return how many workers there may be while they wait and leave the CPUs idle.

    Args:
        machine: What the process may use.
        traits: What the dataset is like.
        given: What the caller gave.
        num_workers: That was chosen for it.
    """
    may_exceed = (
        num_workers > 0
        and given.num_workers == "auto"
        and given.num_workers_override is None
        and not given.has_worker_init_fn
        and _takes_on(traits, given)
    )
    if not may_exceed:
        return num_workers
    return max(num_workers, count_waiting(machine, traits.num_batches))


def may_be_placed(traits: DatasetTraits, given: GivenOptions) -> bool:
    """Return whether batches of a dataset that needs no workers may be made ahead all the same.

    Where that is quicker, and can be told to make no difference.
    """
    return (
        given.num_workers == "auto"
        and given.num_workers_override is None
        and not isinstance(given.suggested, LoaderSettings)
        and traits.batched
        and traits.has_ready_samples
        and not traits.on_device
    )


def choose_spare_workers(machine: Machine, traits: DatasetTraits, given: GivenOptions) -> int:
    """Return how many workers may make batches of a dataset that needs none.

    Only such as are forked: others would need the data sent to them.
    """
    may_start = (
        may_be_placed(traits, given)
        and _takes_on(traits, given)
        and not given.has_worker_init_fn
        and given.in_order in {True, "auto"}
        and _find_obstacle(machine, traits, given) is None
        and choose_start_method(machine, given, has_workers=True)[0] == "fork"
    )
    return count_workers(machine, traits.num_batches, takes_on=True)[0] if may_start else 0


_NO_WORKERS = "only matters with workers"


def _suggestion(given: GivenOptions, name: str) -> tuple[Any, str] | None:
    """Return the value of an option that is left open, where there is one to take."""
    if not isinstance(given.suggested, LoaderSettings):
        return None
    return getattr(given.suggested, name), given.suggested.reasons[name]


def check_given(given: GivenOptions) -> None:
    """Refuse values that cannot work.

    Raises:
        SettingsError: If there are any.
    """
    for name in ("num_workers", "timeout"):
        value = getattr(given, name)
        if value != "auto" and not (isinstance(value, int | float) and value >= 0):
            raise SettingsError(f"{name} option should be non-negative, but got {value!r}.")
    prefetch_factor = given.prefetch_factor
    if prefetch_factor not in {"auto", None} and prefetch_factor < 1:  # type: ignore[operator]
        raise SettingsError(
            "prefetch_factor option should be non-negative and at least 1, because workers "
            f"only load what is asked for ahead, but got {prefetch_factor}."
        )
    context = given.multiprocessing_context
    if given.num_workers == 0 and context not in {"auto", None}:
        raise SettingsError(
            "multiprocessing_context can only be used with multi-process loading "
            f"(num_workers > 0), but got num_workers=0: leave {context!r} out, or set "
            "num_workers to 1 or more."
        )


def worker_options(given: GivenOptions) -> tuple[str, ...]:
    """Name the options given that only matter with workers."""
    candidates = {
        "prefetch_factor": given.prefetch_factor not in {"auto", None},
        "persistent_workers": given.persistent_workers not in {"auto", False},
        "timeout": given.timeout > 0,
        "multiprocessing_context": given.multiprocessing_context not in {"auto", None},
    }
    return tuple(
        f"{name}={getattr(given, name)!r}" for name, is_given in candidates.items() if is_given
    )


def choose_num_workers(
    machine: Machine, traits: DatasetTraits, given: GivenOptions
) -> tuple[int, str]:
    """Return the number of workers, and why it is that."""
    if given.num_workers != "auto":
        return given.num_workers, GIVEN
    obstacle = _find_obstacle(machine, traits, given)
    if obstacle is not None:
        return 0, obstacle
    suggestion = _suggestion(given, "num_workers")
    if given.num_workers_override is not None:
        number = given.num_workers_override, "FASTLOADER_NUM_WORKERS is set"
    elif suggestion is not None:
        number = _limit_to_memory(*suggestion, machine, given)
    elif traits.is_sequence:
        return 0, "the samples lie ready in memory"
    elif traits.has_ready_samples:
        return 0, _explain_ready(machine, traits, given)
    elif _choose_residence(traits, given)[0] is not None:
        return 0, "batches are gathered on the device"
    else:
        number = count_workers(machine, traits.num_batches, takes_on=_takes_on(traits, given))
    return _limit_to_shards(*number, traits)


def explain_growth(
    machine: Machine, traits: DatasetTraits, given: GivenOptions, num_workers: int
) -> str:
    """Return what is to be said beside the number of workers: when they start, how many may come."""
    said = ""
    if given.num_workers == "auto":
        most = choose_most_workers(machine, traits, given, num_workers)
        if most > 1 and _takes_on(traits, given):
            said += "; they start as they are needed"
        if most > num_workers:
            said += f", up to {most} where they wait more than they compute"
    if isinstance(given.suggested, str):
        said += f"; {given.suggested}"
    return said


def _explain_ready(machine: Machine, traits: DatasetTraits, given: GivenOptions) -> str:
    reason = "the dataset makes whole batches in one call, faster than workers send them"
    if not may_be_placed(traits, given):
        return reason
    spare = choose_spare_workers(machine, traits, given)
    workers = f", or up to {spare} workers if more is done than to copy rows," if spare else ""
    return (
        f"{reason}; a thread{workers} may make them ahead where that is measured to be quicker"
    )


def _takes_on(traits: DatasetTraits, given: GivenOptions) -> bool:
    """Return whether workers may start later than others."""
    return (
        _choose_workers(given)[0] == "processes"
        and given.persistent_workers == "auto"
        and not traits.is_iterable
        and not isinstance(given.suggested, LoaderSettings)
    )


def _find_obstacle(machine: Machine, traits: DatasetTraits, given: GivenOptions) -> str | None:
    """Return why workers would fail, if they would."""
    if _choose_workers(given)[0] == "threads":
        return None
    if machine.is_worker:
        return "this process is a worker of another loader"
    if machine.is_daemonic:
        return "a daemonic process may not start workers"
    return traits.tied


def _limit_to_memory(
    number: int, reason: str, machine: Machine, given: GivenOptions
) -> tuple[int, str]:
    """Keep what was measured with more memory than there is now from starting more than fit."""
    if _choose_workers(given)[0] == "threads":
        return number, reason
    return keep_to(count_that_fit(machine, number), number, reason)


def _limit_to_shards(number: int, reason: str, traits: DatasetTraits) -> tuple[int, str]:
    """Keep an iterable dataset from being read by several workers from start to end."""
    if not traits.is_iterable:
        return number, reason
    if traits.num_shards is None:
        if number > 1:
            return 1, "an iterable dataset without num_shards would be repeated by each worker"
    elif traits.num_shards < number:
        return traits.num_shards, "one for each shard of the dataset"
    return number, reason


def _choose_prefetch_factor(given: GivenOptions, has_workers: bool) -> tuple[int | None, str]:
    if not has_workers:
        return None, _NO_WORKERS
    if given.prefetch_factor in {"auto", None}:
        suggestion = _suggestion(given, "prefetch_factor")
        if suggestion is not None and suggestion[0] is not None:
            return suggestion
        reason = "one batch under way and one ready for each worker, more while they are tiny"
        return 2, f"{reason} or take unlike times"
    return given.prefetch_factor, GIVEN  # type: ignore[return-value]


def _choose_persistence(
    machine: Machine, given: GivenOptions, has_workers: bool
) -> tuple[bool, str]:
    if not has_workers:
        return False, _NO_WORKERS
    if given.persistent_workers == "auto":
        if given.has_other_iterators or _choose_transport(machine, given)[0] == "torch":
            return False, "two passes at once would share one iterator of torch's"
        suggested = given.suggested
        if isinstance(suggested, LoaderSettings) and suggested.num_workers > 0:
            return suggested.persistent_workers, suggested.reasons["persistent_workers"]
        return True, "no epoch waits for workers to start"
    return given.persistent_workers, GIVEN


def choose_start_method(
    machine: Machine, given: GivenOptions, has_workers: bool
) -> tuple[str | None, str]:
    """Return how workers start, and why so: other threads are counted for that, which takes time.

    Args:
        machine: What the process may use.
        given: What the caller gave.
        has_workers: Whether there are any.
    """
    method = machine.start_method
    if not has_workers or _choose_workers(given)[0] == "threads":
        return None, "workers are threads" if has_workers else _NO_WORKERS
    if given.multiprocessing_context is None:
        return method, "the default of multiprocessing"
    if given.multiprocessing_context != "auto":
        return given.multiprocessing_context, GIVEN
    if method != "fork" or (machine.num_threads == 0 and machine.fork_hazard is None):
        return method, "the default of multiprocessing"
    threads = f"{machine.num_threads} other threads are alive, whose locks a fork may freeze"
    if machine.fork_hazard is not None:
        threads = f"{machine.fork_hazard}, whose threads a forked child lacks"
    if "forkserver" in machine.start_methods and machine.is_main_importable:
        return "forkserver", threads
    return method, f"the main script cannot be imported again, though {threads}"


def _choose_pinning(
    machine: Machine, traits: DatasetTraits, given: GivenOptions
) -> tuple[bool, str]:
    if given.pin_memory != "auto":
        return given.pin_memory, GIVEN
    obstacle = _find_pinning_obstacle(machine, traits, given)
    if obstacle is not None:
        return False, obstacle
    return _suggestion(given, "pin_memory") or (
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
        return _suggestion(given, "transport") or (
            "shared",
            "memory is reused from batch to batch",
        )
    return "torch", "this system has no anonymous memory files"


def _choose_workers(given: GivenOptions) -> tuple[Workers, str]:
    if given.workers != "auto":
        return given.workers, GIVEN
    return _suggestion(given, "workers") or ("processes", "any dataset can be read by them")


def _choose_order(given: GivenOptions) -> tuple[bool, str]:
    if given.in_order != "auto":
        return given.in_order, GIVEN
    return _suggestion(given, "in_order") or (True, "the same batches in each run")


def _choose_residence(traits: DatasetTraits, given: GivenOptions) -> tuple[str | None, str]:
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
        "workers": _choose_workers(given),
        "prefetch_factor": _choose_prefetch_factor(given, has_workers),
        "persistent_workers": _choose_persistence(machine, given, has_workers),
        "timeout": (given.timeout, GIVEN) if has_workers else (0, _NO_WORKERS),
        "pin_memory": _choose_pinning(machine, traits, given),
        "transport": _choose_transport(machine, given),
        "in_order": _choose_order(given),
        "device": (None, "not asked for") if given.device is None else (given.device, GIVEN),
        "resident": _choose_residence(traits, given),
        "batched": (traits.batched, _BATCHED if traits.batched else _SINGLE),
    }
