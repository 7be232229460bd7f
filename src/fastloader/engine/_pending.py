"""Tasks that workers have and whose batches the consumer has not got."""

from dataclasses import dataclass
from typing import Any

from fastloader.engine._messages import Reply, Task
from fastloader.engine._pool import WorkerPool
from fastloader.engine._turns import Turns
from fastloader.sampling._drawn import Drawn
from fastloader.shm._arena import Slot

__all__ = ["Pending", "Scope", "assign_task"]


@dataclass(frozen=True)
class Scope:
    """What the tasks of a run have in common."""

    run: int
    epoch: int
    base_seed: int


@dataclass
class Pending:
    """A task that was sent and whose batch the consumer has not got."""

    task: Task
    worker: int
    slot: Slot
    sampler_state: bytes | None
    reply: Reply | None = None


def assign_task(
    pool: WorkerPool, turns: Turns, worker: int, scope: Scope, drawn: Drawn, number: int
) -> Pending:
    """Make a task for a worker, with a slot for its batch; it is not sent.

    Args:
        pool: The workers.
        turns: Are told.
        worker: Who gets it.
        scope: Of the run.
        drawn: What to read.
        number: Of the task in its run.
    """
    slot = pool.arena.lend(worker)
    indices: Any = drawn.indices
    task = Task(scope.run, number, indices, scope.epoch, scope.base_seed, slot.place)
    turns.begin(worker)
    return Pending(task, worker, slot, drawn.sampler_state)
