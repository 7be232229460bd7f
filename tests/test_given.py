"""What the caller wrote is checked once, where it enters."""

import warnings

import pytest

from fastloader._given import warn_of_many_workers
from fastloader._machine import read_machine


@pytest.mark.parametrize(
    ("num_workers", "warns"), [(1, False), (2, False), (3, True), (8, True), (9, False)]
)
def test_more_workers_than_granted_cpus_are_warned_of_where_torch_does_not(
    monkeypatch, num_workers, warns
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    machine = read_machine(environment={"SLURM_CPUS_PER_TASK": "2"})

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_many_workers(num_workers, machine)

    assert ["2 CPUs" in str(warning.message) for warning in caught] == [True] * warns
