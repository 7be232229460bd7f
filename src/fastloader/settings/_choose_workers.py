"""From facts and what the caller gave to how many workers there are and how they start; pure."""

from fastloader.machine._machine import Machine
from fastloader.settings._choose import GIVEN, NO_WORKERS, choose_kind, choose_residence
from fastloader.settings._inputs import DatasetTraits, GivenOptions
from fastloader.settings._worker_limits import (
    count_that_fit,
    count_waiting,
    count_workers,
    keep_to,
)

__all__ = [
    "choose_most_workers",
    "choose_num_workers",
    "choose_spare_workers",
    "choose_start_method",
    "explain_growth",
    "may_be_placed",
]


def choose_num_workers(
    machine: Machine, traits: DatasetTraits, given: GivenOptions
) -> tuple[int, str]:
    """Return the number of workers, and why it is that.

    Args:
        machine: What the process may use.
        traits: What the dataset is like.
        given: What the caller gave.
    """
    if given.num_workers != "auto":
        return given.num_workers, GIVEN
    obstacle = _find_obstacle(machine, traits, given)
    if obstacle is not None:
        return 0, obstacle
    return _limit_to_shards(*_wanted_workers(machine, traits, given), traits)


def _wanted_workers(
    machine: Machine, traits: DatasetTraits, given: GivenOptions
) -> tuple[int, str]:
    """Return how many workers suit samples that may be read by any number of them."""
    if given.num_workers_override is not None:
        return given.num_workers_override, "FASTLOADER_NUM_WORKERS is set"
    suggestion = given.suggestion("num_workers")
    if suggestion is not None:
        return _limit_to_memory(*suggestion, machine, given)
    if traits.is_sequence:
        return 0, "the samples lie ready in memory"
    if traits.has_ready_samples:
        return 0, _explain_ready(machine, traits, given)
    if choose_residence(traits, given)[0] is not None:
        return 0, "batches are gathered on the device"
    return count_workers(machine, traits.num_batches, takes_on=_takes_on(traits, given))


def _find_obstacle(machine: Machine, traits: DatasetTraits, given: GivenOptions) -> str | None:
    """Return why workers would fail, if they would."""
    if choose_kind(given)[0] == "threads":
        return None
    if machine.is_worker:
        return "this process is a worker of another loader"
    if machine.is_daemonic:
        return "a daemonic process may not start workers"
    return traits.tied


def _takes_on(traits: DatasetTraits, given: GivenOptions) -> bool:
    """Return whether workers may start later than others."""
    return (
        choose_kind(given)[0] == "processes"
        and given.persistent_workers == "auto"
        and not traits.is_iterable
        and given.measured is None
    )


def _limit_to_memory(
    number: int, reason: str, machine: Machine, given: GivenOptions
) -> tuple[int, str]:
    """Keep what was measured with more memory than there is now from starting more than fit."""
    if choose_kind(given)[0] == "threads":
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


def _explain_ready(machine: Machine, traits: DatasetTraits, given: GivenOptions) -> str:
    reason = "the dataset makes whole batches in one call, faster than workers send them"
    if not may_be_placed(traits, given):
        return reason
    spare = choose_spare_workers(machine, traits, given)
    workers = f", or up to {spare} workers if more is done than to copy rows," if spare else ""
    return (
        f"{reason}; a thread{workers} may make them ahead where that is measured to be quicker"
    )


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
        and given.leaves_number_open
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
        given.leaves_number_open
        and given.measured is None
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
    if not has_workers or choose_kind(given)[0] == "threads":
        return None, "workers are threads" if has_workers else NO_WORKERS
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
