"""Batches that lie ready many at a time are given, noted and resumed as if each came alone."""

import gc
import pickle
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import TensorDataset

from fastloader import FastLoader
from fastloader.datasets._wrapper import DatasetWrapper
from fastloader.epochs._hand import HandIterator
from fastloader.sampling._uploaded import _Upload

pytestmark = pytest.mark.usefixtures("resident_here")

LENGTH = 1000


def make_loader(batch_size=3, **options):
    data = TensorDataset(torch.arange(LENGTH)[:, None], torch.arange(LENGTH))
    return FastLoader(data, batch_size, resident="device", num_workers=0, **options)


def numbers_of(batches):
    return [labels.tolist() for _, labels in batches]


def expected(batch_size=3, length=LENGTH):
    return [
        list(range(start, min(start + batch_size, length)))
        for start in range(0, length, batch_size)
    ]


@pytest.mark.parametrize("batch_size", [1, 3, 400, 1000])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_pass_gives_all_batches(batch_size, drop_last):
    loader = make_loader(batch_size, drop_last=drop_last)
    wanted = [one for one in expected(batch_size) if not drop_last or len(one) == batch_size]

    for _ in range(3):
        iterator = iter(loader)
        assert type(iterator) is HandIterator
        assert numbers_of(iterator) == wanted
        assert next(iterator, None) is None


def test_each_batch_is_the_callers_own():
    batches = []
    for images, labels in make_loader():
        batches.append(images.add_(1))
        labels.zero_()

    assert torch.equal(torch.cat(batches)[:, 0], torch.arange(LENGTH) + 1)
    assert numbers_of(make_loader()) == expected()


def test_data_and_gathered_batches_are_let_go_of():
    loader = make_loader()
    list(loader)
    iterator = iter(loader)
    batch = weakref.ref(next(iterator)[0])
    for _ in range(130):
        next(iterator)

    assert batch() is None
    last = weakref.ref(next(iterator)[0])
    del iterator
    gc.collect()
    assert last() is None
    assert loader.stats.snapshot("epoch").num_batches == 132


def test_a_loader_that_is_given_up_leaves_nothing_to_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        loader = make_loader()
        next(iter(loader))
        del loader
        left = [
            type(one) for one in gc.get_objects() if isinstance(one, _Upload | HandIterator)
        ]
    finally:
        gc.enable()

    assert left == []


def test_indices_do_not_stay_on_the_device_when_a_pass_is_over():
    loader = make_loader()
    list(loader)
    gc.collect()

    assert not [one for one in gc.get_objects() if isinstance(one, _Upload)]


@pytest.mark.parametrize("count", [0, 1, 2, 64, 65, 66, 200, 333, 334])
def test_a_state_is_that_of_what_was_taken(count):
    def loader():
        return make_loader(shuffle=True, generator=torch.Generator().manual_seed(1))

    whole = numbers_of(loader())
    first = loader()
    iterator = iter(first)
    taken = [next(iterator) for _ in range(count)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    other = loader()
    other.load_state_dict(state)

    assert numbers_of(taken) + numbers_of(other) == whole
    assert numbers_of(taken) + numbers_of(iterator) == whole


def test_a_loader_can_be_pickled_in_the_middle():
    loader = make_loader()
    iterator = iter(loader)
    for _ in range(70):
        next(iterator)

    copy = pickle.loads(pickle.dumps(loader))

    assert copy.state_dict()["num_batches"] == 70


@pytest.mark.parametrize("count", [1, 2, 64, 65, 66, 200, 334])
def test_statistics_count_what_was_taken(count):
    loader = make_loader()
    list(loader)
    loader.stats.reset()
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)

    found = loader.stats.snapshot()
    assert found.num_batches == count
    assert found.num_samples == min(3 * count, LENGTH)
    assert (
        found.next_max_seconds is None or found.next_max_seconds >= found.next_p50_seconds >= 0
    )
    del iterator
    assert loader.stats.snapshot().num_batches == count


def test_what_was_counted_before_a_reset_is_not_counted_again():
    loader = make_loader()
    iterator = iter(loader)
    for _ in range(30):
        next(iterator)
    loader.stats.reset()
    for _ in range(50):
        next(iterator)

    assert loader.stats.snapshot().num_batches == 50


def test_samples_are_counted_in_threads_that_take_turns():
    loader = make_loader(1)
    iterator, found = iter(loader), []

    def take():
        found.extend(labels.item() for _, labels in iterator)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == list(range(LENGTH))
    assert loader.stats.snapshot().num_batches == LENGTH


def test_an_epoch_that_is_set_after_the_iterator_was_made_is_the_one_that_comes():
    def loader():
        return make_loader(shuffle=True, seed=3)

    asked = loader()
    iterator = iter(asked)
    asked.sampler.set_epoch(7)
    other = loader()
    other.set_epoch(7)

    assert numbers_of(iterator) == numbers_of(other)
    assert asked.stats.snapshot().num_batches == len(expected())


def test_an_epoch_that_comes_in_another_way_is_given_too():
    loader = make_loader(shuffle=True, seed=3)
    other = make_loader(shuffle=True, seed=3)
    iterator = iter(loader)
    loader.sampler.set_epoch(7)
    other.set_epoch(7)
    loader.device_transform = lambda batch: [batch[0], batch[1] + 1]

    first = next(iterator)

    assert type(iterator) is not HandIterator
    assert first[1].tolist() == [number + 1 for number in next(iter(other))[1].tolist()]


@pytest.mark.parametrize(
    "options",
    [
        {"device_transform": lambda batch: batch},
        {"batch_size": 1, "batch_sampler": [[0, 1], [2], [3, 4, 5]]},
    ],
    ids=["transform", "sampler"],
)
def test_batches_that_are_looked_at_come_one_by_one(options):
    loader = make_loader(**options)

    iterator = iter(loader)

    assert type(iterator) is not HandIterator
    assert sum(len(labels) for _, labels in iterator) in {6, LENGTH}


class Device:
    """A device whose streams are told to wait."""

    Event = torch.cpu.Event

    def __init__(self):
        self.current = 1
        self.waits = []

    def current_stream(self, _device=None):
        own = self.current
        return SimpleNamespace(
            number=own, wait_stream=lambda other: self.waits.append((own, other.number))
        )


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(
        "fastloader.stages._resident.stream_teller", lambda _: lambda: device.current
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    return device


def test_another_stream_waits_for_the_one_on_which_batches_were_gathered(device):
    loader = make_loader(2)
    list(loader)
    iterator = iter(loader)
    batches = []
    for device.current in (1, 1, 2, 2, 3, 1, 1):
        batches.append(next(iterator))

    assert device.waits == [(2, 1), (3, 1), (1, 1)]
    device.current = 4
    batches += iterator
    assert numbers_of(batches) == expected(2)
    assert device.waits[3] == (4, 1)


def test_batches_gathered_on_another_stream_need_not_wait(device):
    loader = make_loader(2)
    list(loader)
    device.current = 5
    list(loader)

    assert device.waits == []


class Refusing(torch.utils.data.Dataset):
    """Numbers in batches, whose wrapper on the device refuses one."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.tensor(index)

    def get_batch(self, indices):
        return torch.tensor(list(indices))


class Refuse(DatasetWrapper):
    refused = 31

    def transform_batch(self, batch, indices):
        if self.refused in list(indices):
            raise ValueError("not that one")
        return batch


def test_an_error_comes_at_its_batch_and_the_others_come_too():
    loader = FastLoader(Refuse(Refusing()), 3, resident="device", num_workers=0)
    found = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator).tolist())
        except ValueError:
            found.append("refused")
            assert loader.state_dict()["num_batches"] == 10  # a resumed pass tries it again
        except StopIteration:
            break

    assert found == [*expected(3, 30), "refused", *expected(3, 60)[11:]]
    assert loader.stats.snapshot().num_batches == 19
