"""What workers that inherit nothing start from."""

import mmap
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from fastloader import FastLoader
from fastloader.engine import FetchPlan
from fastloader.engine._launch import pickled_launch
from fastloader.machine._address_space import read_spans
from fastloader.shm._mapping_over import can_map_over

NUM_ROWS, ROW_BYTES = 1200, 40_000


class Rows(torch.utils.data.Dataset):
    def __init__(self, make):
        self.rows = make(np.arange(NUM_ROWS * ROW_BYTES, dtype=np.uint16).view(np.uint8))
        self.rows = self.rows.reshape(NUM_ROWS, -1)
        self.numbers = np.arange(NUM_ROWS)

    def __len__(self):
        return NUM_ROWS

    def __getitem__(self, index):
        return int(self.numbers[index]), torch.as_tensor(self.rows[index])


def plan_of(dataset):
    return FetchPlan(dataset, False, True, default_collate, False, None)


def in_files(array):
    start, stop = np.lib.array_utils.byte_bounds(np.asarray(array))
    return sum(
        min(span.stop, stop) - max(span.start, start)
        for span in read_spans()
        if span.name.startswith("/memfd:fastloader") and span.start < stop and start < span.stop
    )


@pytest.fixture(params=[np.copy, torch.tensor], ids=["array", "tensor"])
def dataset(request):
    return Rows(request.param)


def test_the_plan_arrives_as_it_was(dataset):
    expected = np.asarray(dataset.rows).copy()
    launch = pickled_launch(plan_of(dataset), None, stands_for_fork=False)

    plan, worker_init_fn = launch.load()

    assert np.array_equal(expected, np.asarray(plan.dataset.rows))
    np.testing.assert_array_equal(dataset.numbers, plan.dataset.numbers)
    assert worker_init_fn is None
    assert np.array_equal(expected, np.asarray(dataset.rows))


@pytest.mark.skipif(not can_map_over(), reason="needs Linux")
def test_this_process_holds_no_second_copy_of_large_data(dataset):
    launch = pickled_launch(plan_of(dataset), None, stands_for_fork=False)

    assert in_files(dataset.rows) > dataset.rows.nbytes - 2 * mmap.PAGESIZE
    del launch


def test_what_is_changed_on_either_side_stays_there(dataset):
    launch = pickled_launch(plan_of(dataset), None, stands_for_fork=False)
    before = int(dataset.rows[5, 7])
    dataset.rows[5, 7] = before ^ 1

    plan, _ = launch.load()
    assert plan.dataset.rows[5, 7] == before
    plan.dataset.rows[9, 9] = before ^ 3
    assert dataset.rows[9, 9] != before ^ 3
    plan_of_another_worker, _ = launch.load()
    assert plan_of_another_worker.dataset.rows[9, 9] != before ^ 3


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_epochs_see_the_data_as_it_is_when_they_begin(dataset, method):
    loader = FastLoader(dataset, 100, num_workers=2, multiprocessing_context=method)
    for step in range(2):
        expected = np.asarray(dataset.rows).copy()
        batches = iter(loader)
        rows = [next(batches)[1]]
        dataset.rows += 1
        rows += [batch for _, batch in batches]
        np.testing.assert_array_equal(expected, torch.cat(rows).numpy(), err_msg=str(step))


SCRIPT = """
import sys
was_there = "fastloader._loader" in sys.modules

from fastloader import FastLoader

class Told:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return was_there

if __name__ == "__main__":
    print([bool(seen) for seen in FastLoader(
        Told(), None, num_workers=1, multiprocessing_context="forkserver")])
"""


@pytest.mark.multiprocess
def test_what_the_main_script_takes_of_this_package_is_there_before_a_worker_imports_it(
    tmp_path,
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100, check=True
    )

    assert done.stdout.strip() == "[True, True]"
