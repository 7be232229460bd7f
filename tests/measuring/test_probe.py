"""What samples cost is told apart from what others on the machine do."""

import threading
import time
import traceback

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from fastloader import FastLoader
from fastloader.measuring import _probe
from fastloader.measuring._probe import _ended, _note_end, _Part, _summed, probe


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
        queued_seconds=queued,
        others_queued_seconds=0.0,
        collate_seconds=collate,
        transform_seconds=0.0,
        device_transform_seconds=0.0,
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


def part_of_threads(*, wall, ran, queued):
    """Work of three threads beside the one that reads, each of which takes such times."""
    return part_of(wall=wall, ran=3 * ran, queued=0.0)._replace(
        others_queued_seconds=3 * queued
    )


@pytest.mark.parametrize(
    ("part", "num_threads", "share"),
    [
        (part_of_threads(wall=0.1, ran=0.1, queued=0.0), 3.0, 1.0),
        (part_of_threads(wall=0.15, ran=0.1, queued=0.05), 3.0, 1.0),
        (part_of_threads(wall=0.6, ran=0.1, queued=0.5), 3.0, 1.0),
        (part_of_threads(wall=0.3, ran=0.1, queued=0.0), 1.0, 1.0),
        (part_of_threads(wall=1.2, ran=0.1, queued=0.3), 1.0, 1.0),
        (part_of_threads(wall=0.3, ran=0.01, queued=0.0), 1.0, 0.1),
    ],
    ids=["at once", "too few cores", "crowded", "in turns", "in turns, crowded", "waiting"],
)
def test_threads_count_as_far_as_they_want_cores_at_once(part, num_threads, share):
    found = _summed([part], 0.0)

    assert found.num_threads == pytest.approx(num_threads)
    assert found.computing_share == pytest.approx(share)


def test_the_end_of_a_thread_is_noted():
    _ended.clear()
    threading.setprofile(_note_end)
    try:
        thread = threading.Thread(target=time.sleep, args=(0.001,))
        thread.start()
        thread.join()
    finally:
        threading.setprofile(None)

    [waited] = _ended
    assert waited >= 0.0


def test_of_threads_that_end_the_batches_tell_that_had_the_cores():
    crowded = part_of(wall=0.3, ran=0.2, queued=0.0)
    free = part_of(wall=0.1, ran=0.2, queued=0.0)

    assert _summed([crowded] * 6 + [free] * 2, 0.0).num_threads == pytest.approx(2.0)


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


@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
def test_what_this_package_collates_on_one_thread_is_tried_on_one(monkeypatch, kind):
    seen = set()

    def collate(samples):
        seen.add(torch.get_num_threads())
        return samples

    monkeypatch.setattr(_probe, "default_collate", collate)
    monkeypatch.setattr(torch, "get_num_threads", (numbers := NumThreads()).get)
    monkeypatch.setattr(torch, "set_num_threads", numbers.set)
    loader = kind([torch.zeros(3)] * 8, 4, collate_fn=collate, num_workers=0)

    probe(loader, 0.01)

    assert seen == {1 if kind is FastLoader else 5}
    assert numbers.number == 5


class NumThreads:
    """How many threads torch would compute on."""

    def __init__(self):
        self.number = 5

    def get(self):
        return self.number

    def set(self, number):
        self.number = number
