"""Rank and world size come from the process group, else from the launcher's variables."""

import pytest

from fastloader.machine._ranks import read_ranks


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, (1, 3)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, (3, 8)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, (0, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),
        ({"RANK": "1"}, (0, 1)),
        ({"RANK": "4", "WORLD_SIZE": "4"}, (0, 1)),
        ({"RANK": "none", "WORLD_SIZE": "4"}, (0, 1)),
    ],
    ids=[
        "no launcher", "torchrun", "Open MPI", "MPICH", "srun", "torchrun within srun",
        "one process in a batch script", "half of a pair", "no such rank", "no number",
    ],
)  # fmt: skip
def test_the_rank_is_read_from_the_launchers_variables(environment, expected):
    ranks = read_ranks(environment)

    assert (ranks.rank, ranks.world_size) == expected
