"""What the caller wrote is checked once, where it enters."""

import warnings

import numpy as np
import pytest

from fastloader import FastLoader
from fastloader.errors import SettingsError
from fastloader.machine._machine import read_machine
from fastloader.settings._given import warn_of_many_workers


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


def test_a_batch_size_of_numpy_is_a_number_like_any_other():
    loader = FastLoader(range(4), np.int64(2), num_workers=0)

    assert [len(batch) for batch in loader] == [2, 2]
    assert type(loader.batch_size) is int


@pytest.mark.parametrize("size", [0, 2.0, True, np.float32(2)], ids=repr)
def test_a_batch_size_that_is_none_is_refused_as_torch_does(size):
    with pytest.raises(ValueError, match="positive integer"):
        FastLoader(range(4), size)


WRONG = [
    ("num_workers", -1, "num_workers option should be non-negative, but got -1"),
    ("num_workers", None, "num_workers option should be non-negative, but got None"),
    ("num_workers", "two", "num_workers should be a whole number"),
    ("num_workers", 1.5, "num_workers should be a whole number"),
    ("num_workers", "auto", "chosen where a loader is made"),
    ("prefetch_factor", 0, "at least 1"),
    ("prefetch_factor", -1, "at least 1"),
    ("prefetch_factor", "auto", "chosen where a loader is made"),
    ("timeout", -1, "timeout option should be non-negative, but got -1"),
    ("timeout", "5", "timeout option should be non-negative, but got '5'"),
    ("on_error", "ignore", "on_error should be 'raise' or 'skip', but got 'ignore'"),
    ("workers", "fibres", "workers should be 'processes'"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_what_cannot_work_is_refused_also_where_it_is_set_later(name, value, words):
    loader = FastLoader(range(8), 2, num_workers=1)
    setattr(loader, name, value)

    with pytest.raises(SettingsError, match=words):
        iter(loader)


def test_numbers_that_are_set_later_count():
    loader = FastLoader(range(8), 2, num_workers=0)
    loader.num_workers, loader.prefetch_factor, loader.timeout = np.int64(1), np.int64(3), 60

    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
