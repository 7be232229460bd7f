"""The first batches of plain code are made here, and workers go on where that takes longer."""

import multiprocessing
import os

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from fastloader import FastLoader
from fastloader.engine import _begun_here


class Rows(Dataset):
    """Plain code."""

    def __init__(self, length):
        self.values = torch.arange(length)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index] * 2, index


class Plain(Rows):
    """Plain code whose samples are numbers."""

    def __getitem__(self, index):
        return index


class Asking(Rows):
    """Says where it is read."""

    def __getitem__(self, index):
        return os.getpid() if get_worker_info() else 0


def num_children():
    return len(multiprocessing.active_children())


def rows(loader):
    return [[part.tolist() for part in batch] for batch in loader]


@pytest.fixture
def made_here(monkeypatch):
    """Set how many batches are made before workers go on."""

    def of(num_batches):
        monkeypatch.setattr(_begun_here, "MOST_CPU_SECONDS", num_batches)
        clock = iter(range(10**6))
        monkeypatch.setattr(_begun_here.time, "thread_time", lambda: next(clock))

    return of


def test_a_short_epoch_of_plain_code_starts_no_worker(made_here):
    made_here(1000)
    loader = FastLoader(Rows(100), 8)
    before = num_children()

    epochs = [rows(loader) for _ in range(2)]

    assert loader.num_workers > 0
    assert num_children() == before
    assert loader.stats.snapshot().workers == ()
    assert epochs == [rows(FastLoader(Rows(100), 8, num_workers=0))] * 2


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_here", [0, 1, 6, 7, 50])
@pytest.mark.parametrize("in_order", [True, False])
def test_workers_go_on_where_the_process_has_ended(made_here, num_here, in_order):
    made_here(num_here)
    loader = FastLoader(Rows(100), 8, shuffle=True, seed=3, in_order=in_order)
    expected = FastLoader(Rows(100), 8, shuffle=True, seed=3, num_workers=0)

    for _ in range(3):  # workers that are there are used from the first batch on
        assert sorted(rows(loader)) == sorted(rows(expected))

    snapshot = loader.stats.snapshot()
    assert snapshot.num_batches == 39
    # After 7 of 13 batches the rest takes less than workers take to start.
    assert bool(snapshot.workers) == (num_here < 7)


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_read", [2, 5, 8])
def test_a_place_before_or_after_workers_have_come_is_gone_on_from(made_here, num_read):
    made_here(5)
    loader = FastLoader(Rows(100), 8, shuffle=True, seed=3)
    whole = rows(FastLoader(Rows(100), 8, shuffle=True, seed=3, num_workers=0))
    iterator = iter(loader)
    for _ in range(num_read):
        next(iterator)

    resumed = FastLoader(Rows(100), 8, shuffle=True, seed=3)
    resumed.load_state_dict(loader.state_dict())

    assert rows(resumed) == whole[num_read:]


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_read", [0, 2, 8])
def test_an_epoch_that_is_broken_off_leaves_nothing(made_here, num_read):
    made_here(5)
    before = num_children()
    loader = FastLoader(Rows(100), 8)
    iterator = iter(loader)
    for _ in range(num_read):
        next(iterator)

    del iterator, loader

    assert num_children() == before


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"persistent_workers": True},
        {"worker_init_fn": id},
        {"collate_fn": torch.tensor},
        {"batch_transform": torch.clone},
        {"on_error": "skip"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_who_asks_for_workers_or_gives_other_code_gets_them(options):
    loader = FastLoader(Plain(16), 8, **options)

    list(loader)

    assert loader.stats.snapshot().workers != ()


@pytest.mark.multiprocess
def test_code_that_is_not_plain_is_never_read_here():
    pids = torch.cat(list(FastLoader(Asking(100), 8)))

    assert (pids != 0).all()


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_here", [0, 50])
def test_an_error_names_its_sample_wherever_it_is_raised(made_here, num_here):
    made_here(num_here)

    with pytest.raises(IndexError) as caught:
        list(FastLoader(Rows(16), 8, sampler=[*range(8), 99]))

    assert any("index 99" in note for note in caught.value.__notes__)


def test_plain_code_is_not_seeded_for(monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr("fastloader._isolation.seed_global_generators", fail)

    assert len(list(FastLoader(Rows(100), 8, num_workers=0))) == 13
    assert len(list(FastLoader(Rows(100), 8))) == 13
