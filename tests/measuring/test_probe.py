"""What samples cost is told apart from what others on the machine do."""

import time
import traceback

import pytest
from torch.utils.data import DataLoader, get_worker_info

from fastloader import FastLoader
from fastloader.machine._busy_clock import ThreadTime
from fastloader.measuring._probe import _Part, _summed, probe


class SlowInOurWorkers:
    """Samples that take a tenth of a second where a worker of this package reads them."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        is_ours = any(
            "fastloader/engine" in frame.filename for frame in traceback.extract_stack()
        )
        time.sleep(0.1 if is_ours else 0.0)
        return index


def part_of(*, wall, ran, queued, later=0.0, collate=0.0):
    return _Part(
        indices=[0, 1],
        own_seconds=[0.01, 0.01],
        wall_seconds=wall,
        later_wall_seconds=later,
        cpu_seconds=ran,
        threads={1: ThreadTime(ran, queued)},
        collate_seconds=collate,
        transform_seconds=0.0,
    )


@pytest.mark.parametrize(
    ("part", "share"),
    [
        (part_of(wall=0.1, ran=0.1, queued=0.0), 1.0),
        (part_of(wall=0.4, ran=0.1, queued=0.3), 1.0),
        (part_of(wall=0.1, ran=0.01, queued=0.0), 0.1),
        (part_of(wall=0.4, ran=0.01, queued=0.3), 0.1),
    ],
    ids=["computes", "computes, crowded", "waits", "waits, crowded"],
)
def test_to_stand_in_line_for_a_core_is_neither_computing_nor_waiting(part, share):
    assert _summed([part], 0.0).computing_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("part", "slowdown"),
    [
        (part_of(wall=0.1, ran=0.1, queued=0.0), 1.0),
        (part_of(wall=0.4, ran=0.1, queued=0.3), 4.0),
        (part_of(wall=0.4, ran=0.01, queued=0.1), 4 / 3),
        (part_of(wall=0.1, ran=0.1, queued=0.0, later=0.4, collate=0.1), 2.5),
        (part_of(wall=0.01, ran=0.001, queued=0.008), 1.0),
    ],
    ids=["alone", "computes, crowded", "waits, crowded", "collates, crowded", "too little"],
)
def test_a_batch_is_slowed_by_the_time_for_which_others_had_the_core(part, slowdown):
    assert _summed([part], 0.0).slowdown == pytest.approx(slowdown)


@pytest.mark.multiprocess
def test_samples_are_read_in_workers_of_the_loaders_own_kind():
    dataset = SlowInOurWorkers()

    ours = probe(FastLoader(dataset, 2, num_workers=1), 0.2)
    torchs = probe(DataLoader(dataset, 2, num_workers=1), 0.2)

    assert torchs.median_seconds < 0.1 <= ours.median_seconds + 0.01


def keep_first_half(_number):
    dataset = get_worker_info().dataset
    dataset.items = dataset.items[: len(dataset.items) // 2]


class Items:
    def __init__(self):
        self.items = range(8)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        assert get_worker_info().dataset is self
        assert len(self.items) == 4
        return self.items[index]


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
def test_the_callers_code_finds_its_own_dataset_in_the_worker(kind):
    loader = kind(Items(), 2, num_workers=1, worker_init_fn=keep_first_half)

    assert len(probe(loader, 0.1).sample_seconds) > 1
