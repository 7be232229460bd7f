"""How many workers a machine and an epoch have room for; pure."""

from operator import itemgetter

from fastloader.machine._machine import Machine

__all__ = ["count_that_fit", "count_waiting", "count_workers", "keep_to"]

_MAX_WORKERS = 16
"""More workers than this no longer raise the rate on any machine measured."""

_MAX_WAITING = 32
"""The same for workers that wait for a disk or a network, whatever the CPUs."""

_WORKER_BYTES = 512 * 1024 * 1024
"""Memory set aside for each worker: an interpreter with torch, and batches under way."""

_PROCESS_BYTES = 256 * 1024 * 1024
"""The same without batches, whose size is known before workers become more than CPUs."""

_BY_MEMORY = "limited by the memory available"

_WORKER_FILES = 16
"""Open files that the process should have for each worker: it keeps five, the rest is left."""


def count_workers(
    machine: Machine, num_batches: int | None, *, takes_on: bool
) -> tuple[int, str]:
    """Return how many workers may compute at once, and which limit that is.

    Args:
        machine: What the process may use.
        num_batches: Of an epoch, if that is known.
        takes_on: Whether workers start later than others, as they are needed.
    """
    if num_batches is not None and num_batches < 2:
        return 0, "an epoch of one batch leaves workers nothing to do meanwhile"
    cpus = f"{machine.granted_cpus} usable CPUs"
    if machine.local_world_size > 1:
        cpus += f" for {machine.local_world_size} local ranks"
    if takes_on and machine.rank_cpus > 1:
        # The last worker starts only while training waits, and so leaves its CPU idle.
        by_cpus = machine.rank_cpus, cpus
    else:
        least = 1 if machine.accelerator is not None else 0
        by_cpus = max(least, machine.rank_cpus - 1), f"{cpus}, less one for training"
    limits = [by_cpus, (_MAX_WORKERS, "more rarely help")]
    if num_batches is not None:
        limits.append((num_batches, "one for each batch of an epoch"))
    number, reason = min(limits, key=itemgetter(0))
    return keep_to(machine.count_that_fit(_WORKER_BYTES, number), number, reason)


def count_waiting(machine: Machine, num_batches: int | None) -> int:
    """Return how many workers there may be that wait and leave the CPUs idle.

    Args:
        machine: What the process may use.
        num_batches: Of an epoch, if that is known.
    """
    limits = [_MAX_WAITING]
    if machine.max_open_files is not None:
        limits.append(machine.max_open_files // _WORKER_FILES)
    if num_batches is not None:
        limits.append(num_batches)
    return count_that_fit(machine, min(limits))


def count_that_fit(machine: Machine, number: int) -> int:
    """Return how many of a number of processes there is memory for, apart from their batches.

    Args:
        machine: What the process may use.
        number: Of processes.
    """
    return machine.count_that_fit(_PROCESS_BYTES * machine.local_world_size, number)


def keep_to(that_fit: int, number: int, reason: str) -> tuple[int, str]:
    """Return a number of workers and why it is that, where memory may have room for fewer.

    Args:
        that_fit: As many as there is room for, of that number.
        number: Of workers.
        reason: For that number.
    """
    return (number, reason) if that_fit == number else (that_fit, _BY_MEMORY)
