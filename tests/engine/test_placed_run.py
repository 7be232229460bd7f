"""Batches of plain code are made here or by workers, and it makes no difference to them where."""

import multiprocessing
import os

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from fastloader import FastLoader
from fastloader.engine import Place, Placement
from fastloader.epochs import _epoch


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


class Begun(Placement):
    """Lets workers go on after so many batches."""

    def __init__(self, num_batches):
        super().__init__()
        self._num_left = num_batches

    def note(self, *_seconds):
        self._num_left -= 1
        if self._num_left <= 0:
            self.place = Place.WORKERS

    num_passed_over = 0

    def may_finish_here(self, _num_left):
        return False


@pytest.fixture
def made_here(monkeypatch):
    """Set how many batches are made before workers go on."""
    return lambda num_batches: monkeypatch.setattr(
        _epoch, "Placement", lambda _num_cpus: Begun(num_batches)
    )


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
@pytest.mark.parametrize("num_here", [1, 5, 12, 50])
@pytest.mark.parametrize("in_order", [True, False])
def test_workers_go_on_where_the_process_has_ended(made_here, num_here, in_order):
    made_here(num_here)
    loader = FastLoader(Rows(100), 8, shuffle=True, seed=3, in_order=in_order)
    expected = FastLoader(Rows(100), 8, shuffle=True, seed=3, num_workers=0)

    for _ in range(3):  # workers that are there are used from the first batch on
        assert sorted(rows(loader)) == sorted(rows(expected))

    snapshot = loader.stats.snapshot()
    assert snapshot.num_batches == 39
    assert bool(snapshot.workers) == (num_here <= 12)


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
@pytest.mark.parametrize("num_here", [1, 50])
def test_an_error_names_its_sample_wherever_it_is_raised(made_here, num_here):
    made_here(num_here)

    with pytest.raises(IndexError) as caught:
        list(FastLoader(Rows(16), 8, sampler=[*range(8), 99]))

    assert any("index 99" in note for note in caught.value.__notes__)


class Moving(Placement):
    """Moves after so many batches, again and again, whatever they took."""

    def __init__(self, num_batches, places=(Place.HERE, Place.WORKERS)):
        super().__init__()
        self._num_batches = num_batches
        self._order = places
        self.place = places[0]
        self.places = []

    num_passed_over = 0

    def note(self, *_seconds):
        self.places.append(self.place)
        turn = len(self.places) // self._num_batches
        self.place = self._order[turn % len(self._order)]

    def may_finish_here(self, _num_left):
        return False


class Settled(Moving):
    """Finds after so many batches that it would have been better to stay here."""

    needs_no_workers = False

    def note(self, *seconds):
        if not self.needs_no_workers:
            super().note(*seconds)
        is_late = len(self.places) > self._num_batches
        self.needs_no_workers = self.place is Place.HERE and is_late


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_batches", [1, 3, 7])
@pytest.mark.parametrize("in_order", [True, False])
def test_batches_stay_the_same_wherever_they_are_made(num_batches, in_order):
    loader = FastLoader(Rows(400), 8, shuffle=True, seed=3, in_order=in_order)
    loader._opener._placement = placement = Moving(num_batches)
    expected = FastLoader(Rows(400), 8, shuffle=True, seed=3, num_workers=0)

    for _ in range(4):
        ours, theirs = rows(loader), rows(expected)
        assert ours == theirs if in_order else sorted(ours) == sorted(theirs)

    assert {Place.HERE, Place.WORKERS} == set(placement.places)


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_read", [4, 9, 14, 23])
def test_a_place_is_gone_on_from_wherever_batches_are_made(num_read):
    whole = rows(FastLoader(Rows(200), 8, shuffle=True, seed=3, num_workers=0))
    loader = FastLoader(Rows(200), 8, shuffle=True, seed=3)
    loader._opener._placement = Moving(3)
    iterator = iter(loader)
    for _ in range(num_read):
        next(iterator)

    resumed = FastLoader(Rows(200), 8, shuffle=True, seed=3)
    resumed.load_state_dict(loader.state_dict())

    assert rows(resumed) == whole[num_read:]


@pytest.mark.multiprocess
def test_workers_that_are_of_no_use_are_ended_at_once():
    before = num_children()
    loader = FastLoader(Rows(400), 8)
    loader._opener._placement = Settled(5)
    iterator = iter(loader)

    while not loader._opener._placement.needs_no_workers:
        next(iterator)
    labels = torch.cat([next(iterator)[1] for _ in range(20)]).tolist()

    assert num_children() == before
    assert sorted(labels) == labels == [*range(labels[0], labels[0] + 160)]


@pytest.mark.multiprocess
def test_idle_workers_that_are_of_no_use_are_ended_by_the_next_pass():
    before = num_children()
    loader = FastLoader(Rows(400), 8)
    loader._opener._placement = Moving(1000)
    loader._opener._placement.place = Place.WORKERS
    list(loader)
    assert num_children() > before

    loader._opener._placement = Settled(1000)
    loader._opener._placement.needs_no_workers = True
    list(loader)

    assert num_children() == before


@pytest.mark.multiprocess
def test_what_workers_have_begun_of_a_pass_that_begins_here_is_no_wrong_forecast():
    loader = FastLoader(Rows(400), 8, shuffle=True, seed=3)
    expected = FastLoader(Rows(400), 8, shuffle=True, seed=3, num_workers=0)

    workers = Place.WORKERS
    for place, num_batches in ((workers, 1000), (workers, 1000), (Place.HERE, 5)):
        loader._opener._placement = Moving(num_batches)
        loader._opener._placement.place = place
        assert rows(loader) == rows(expected)

    assert loader._opener.keeper._idle.is_predictable


@pytest.mark.multiprocess
def test_the_end_of_a_pass_may_come_while_workers_are_held():
    loader = FastLoader(Rows(80), 8)
    loader._opener._placement = placement = Moving(100)
    placement.place = Place.WORKERS
    iterator = iter(loader)
    next(iterator)
    placement.place = Place.HERE

    assert len(list(iterator)) == 9
    assert rows(loader) == rows(FastLoader(Rows(80), 8, num_workers=0))


@pytest.mark.multiprocess
def test_an_error_leaves_the_rest_of_the_pass_in_order():
    order = [*range(40), 999, *range(41, 200)]
    loader = FastLoader(Rows(200), 4, sampler=order)
    loader._opener._placement = Moving(2)
    iterator, labels, num_errors = iter(loader), [], 0
    while True:
        try:
            labels += next(iterator)[1].tolist()
        except StopIteration:
            break
        except IndexError:
            num_errors += 1

    assert num_errors == 1
    assert labels == [*range(40), *range(44, 200)]


def test_plain_code_is_not_seeded_for(monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr("fastloader.randomness._isolation.BatchIsolation.isolated", fail)

    assert len(list(FastLoader(Rows(100), 8, num_workers=0))) == 13
    assert len(list(FastLoader(Rows(100), 8))) == 13


class Counted(Rows):
    """Plain code that goes by the epoch."""

    def __init__(self, length):
        super().__init__(length)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.epoch


def test_plain_code_knows_the_epoch_of_each_of_two_passes_at_once(made_here):
    made_here(1000)
    loader = FastLoader(Counted(8), 2)
    first, second = iter(loader), iter(loader)

    taken = [(next(first).tolist(), next(second).tolist()) for _ in range(4)]

    assert taken == [([0, 0], [1, 1])] * 4


def test_single_samples_of_plain_code_take_no_worker(no_leaks):
    before = num_children()  # as of a loader in frames of an error, that are not collected yet
    loader = FastLoader(Rows(50), None)

    found = [(value.item(), index) for value, index in loader]

    assert num_children() <= before
    assert found == [(2 * index, index) for index in range(50)]
