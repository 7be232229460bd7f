"""How the workers of a pool are started."""

from dataclasses import dataclass
from multiprocessing.context import BaseContext

from fastloader.engine._launch import WorkerInit
from fastloader.machine._ranks import Ranks
from fastloader.shm._arena import Pin

__all__ = ["PoolOptions"]


@dataclass(frozen=True)
class PoolOptions:
    """How to start workers."""

    context: BaseContext
    num_workers: int
    """The most that there may be."""
    worker_init_fn: WorkerInit | None
    ranks: Ranks
    base_seed: int
    pin: Pin | None = None
    """Locks the memory of slots, for a device that reads them itself."""
    stands_for_fork: bool = False
    """Whether workers are not forked only because that would not be safe."""
    num_first: int | None = None
    """Workers to begin with, where more are taken on as they are needed; None starts all."""
    num_cpus: int | None = None
    """From so many on only those are taken on that leave CPUs idle; None is `num_workers`."""

    are_alike: bool = False
    """Whether it makes no difference which worker makes a batch: not even to draws, as none are made."""

    @property
    def forks(self) -> bool:
        """Whether workers are copies of this process."""
        return self.context.get_start_method() == "fork"
