"""Which of the training processes this one is: from the process group, else from the launcher."""

from collections.abc import Mapping
from typing import NamedTuple

import torch.distributed

from fastloader.machine._environment import PROCESS_ENVIRONMENT

__all__ = ["Ranks", "adopt_ranks", "read_ranks"]

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Accelerate, Lightning
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    # Set by srun only: a batch script that starts one process has SLURM_NTASKS as well.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Ranks(NamedTuple):
    """This training process among all of them."""

    rank: int
    """Number of this process, from 0."""
    world_size: int
    """How many there are, at least 1."""
    source: str
    """What says so."""


_adopted: Ranks | None = None
"""Of a worker process: those of the process that it works for."""


def adopt_ranks(ranks: Ranks) -> None:
    """Let this process, a worker, count as a part of another one.

    It has no process group of its own, and launchers' variables only if that one has them.

    Args:
        ranks: What `read_ranks` gives in the process that it works for.
    """
    global _adopted  # noqa: PLW0603 - a fact of the process, told once at its start
    _adopted = ranks


def read_ranks(environment: Mapping[str, str] | None = None) -> Ranks:
    """Read the rank of this process; nothing is started and no process is waited for.

    Args:
        environment: Environment variables, those of this process by default.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size(), "process group")
    if environment is None:
        if _adopted is not None:
            return _adopted
        environment = PROCESS_ENVIRONMENT
    for rank_name, size_name in _LAUNCHERS:
        rank = environment.get(rank_name, "")
        size = environment.get(size_name, "") if rank else ""
        if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
            return Ranks(int(rank), int(size), f"{rank_name} and {size_name}")
    return Ranks(0, 1, "no launcher")
