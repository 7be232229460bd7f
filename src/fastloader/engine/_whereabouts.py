"""Says which worker is at which task, and where in the code."""

from collections.abc import Iterable

from fastloader.engine._pending import Pending
from fastloader.engine._pool import WorkerPool
from fastloader.engine._wording import name_samples

__all__ = ["place_of", "whereabouts"]

_FORKED = (
    "A forked worker has none of the main process's threads, and the locks that they held stay "
    "locked. If it waits for one (OpenMP, a thread pool, a lock), set "
    "multiprocessing_context='forkserver'."
)


def place_of(pool: WorkerPool, pending: Pending) -> str:
    """Say in which worker, batch and epoch something went wrong."""
    process = pool.processes[pending.worker]
    return (
        f"DataLoader worker {pending.worker} (pid {process.pid}), rank "
        f"{pool.options.ranks.rank}, batch {pending.task.number} of epoch "
        f"{pending.task.epoch}, {name_samples(pending.task.indices)}"
    )


def whereabouts(pool: WorkerPool, pending: Iterable[Pending]) -> str:
    """Say of each worker that is at a task where in the code it is.

    Args:
        pool: The workers.
        pending: All tasks, in the order in which they were sent.
    """
    first: dict[int, Pending] = {}
    for one in pending:
        if one.reply is None:
            first.setdefault(one.worker, one)
    places = "\n".join(
        f"Worker {worker} (pid {pool.processes[worker].pid}) is to make batch "
        f"{one.task.number}, {name_samples(one.task.indices)}. It is here:\n"
        f"{pool.stack_of(worker)}"
        for worker, one in sorted(first.items())
    )
    return f"{places}\n{_FORKED}" if places and pool.options.forks else places
