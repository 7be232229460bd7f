"""The first batches of a pass over resident data are gathered while the one before ends, and are those that it gives."""

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

from fastloader import FastLoader
from fastloader.datasets import Augment, ChannelStatistics, Standardize
from fastloader.datasets._batched import as_batched
from fastloader.datasets._resident import is_copy_alone
from fastloader.epochs import _next_start as module
from fastloader.transforms import RandomFlip

LENGTH = 1000


@pytest.fixture(autouse=True)
def begins_soon(resident_here, monkeypatch):
    """Have a next pass begun however short this one is, beside a device of one stream."""
    monkeypatch.setattr(module, "LEAST_SECONDS", 0)
    monkeypatch.setattr(module, "side_stream", lambda *_: torch.cpu.Stream())


@pytest.fixture
def taken(monkeypatch):
    """Note for each pass whether what was gathered ahead was used."""
    found = []
    take = module.NextStart.take

    def noting(self, *arguments):
        batch = take(self, *arguments)
        found.append(batch is not None)
        return batch

    monkeypatch.setattr(module.NextStart, "take", noting)
    return found


def make_data(length=LENGTH):
    return TensorDataset(torch.arange(length)[:, None] * 2, torch.arange(length))


def make_loader(data=None, batch_size=3, **options):
    data = make_data() if data is None else data
    return FastLoader(data, batch_size, resident="device", num_workers=0, **options)


def start_of(loader):
    return loader._opener.residence._next_start


def read(loader):
    """Return a pass, when what it has begun is there."""
    found = [labels.tolist() for _, labels in loader]
    if (job := start_of(loader)._job) is not None:
        wait([job])
    return found


def shuffled():
    return {"shuffle": True, "generator": torch.Generator().manual_seed(1)}


def stocks(num_passes):
    loader = DataLoader(make_data(), 3, **shuffled())
    return [[labels.tolist() for _, labels in loader] for _ in range(num_passes)]


@pytest.mark.parametrize("batch_size", [1, 3, 400, 1000])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["global", "own"])
def test_what_is_begun_ahead_is_what_stock_gives(taken, batch_size, drop_last, own):
    passes = []
    for kind, options in (
        (DataLoader, {}),
        (FastLoader, {"resident": "device", "num_workers": 0}),
    ):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(1) if own else None
        loader = kind(
            make_data(),
            batch_size,
            shuffle=True,
            generator=generator,
            drop_last=drop_last,
            **options,
        )
        read_pass = read if kind is FastLoader else list
        passes.append([read_pass(loader) for _ in range(5)])
    stock, found = passes

    assert found == [[labels.tolist() for _, labels in one] for one in stock]
    assert taken == [False, False, True, True, True]


@pytest.mark.parametrize(
    "options",
    [{}, {"seed": 7, "shuffle": True}, {"seed": 7, "shuffle": True, "drop_last": True}],
    ids=["in order", "by seed", "by seed, no rest"],
)
def test_other_known_orders_are_begun_ahead(taken, options):
    def passes(wait_for_it):
        loader = make_loader(**options)
        return [wait_for_it(loader) for _ in range(4)]

    plain = passes(lambda loader: [labels.tolist() for _, labels in iter_without_start(loader)])
    taken.clear()

    assert passes(read) == plain
    assert taken == [False, False, True, True]


def iter_without_start(loader):
    if loader._opener.residence._next_start is not None:
        start_of(loader)._is_wanted = False
    return loader


def test_images_are_those_of_the_labels_and_the_callers_own():
    loader = make_loader(**shuffled())
    for _ in range(4):
        for images, labels in loader:
            assert torch.equal(images[:, 0], labels * 2)
            images.zero_()
        wait([start_of(loader)._job] if start_of(loader)._job else [])


def test_no_generator_moves_before_the_pass_begins(taken):
    states = []
    for ahead in (True, False):
        torch.manual_seed(5)
        loader = make_loader(**shuffled())
        generator = loader.generator
        for _ in range(3):
            if not ahead:
                iter_without_start(loader)
            read(loader)
        states.append((generator.get_state(), torch.get_rng_state()))
    (own, whole), (plain_own, plain_whole) = states

    assert torch.equal(own, plain_own)
    assert torch.equal(whole, plain_whole)
    assert taken == [False, False, True, False, False, False]


def draw(loader, data):
    torch.rand(1, generator=loader.generator)


def write(loader, data):
    data.tensors[1].add_(1000)


def replace(loader, data):
    data.tensors = (data.tensors[0], data.tensors[1] + 1000)


@pytest.mark.parametrize("change", [draw, write, replace])
def test_nothing_of_before_a_change_is_given(change):
    orders = []
    for ahead in (True, False):
        data = make_data()
        loader = make_loader(data, **shuffled())
        for _ in range(2):
            if not ahead:
                iter_without_start(loader)
            read(loader)
        change(loader, data)
        orders.append([read(loader) for _ in range(3)])

    assert orders[0] == orders[1]


def test_an_epoch_that_is_set_is_given_from_its_start(taken):
    def nth(epoch):
        loader = make_loader(seed=3, shuffle=True)
        loader.set_epoch(epoch)
        return read(loader)

    loader = make_loader(seed=3, shuffle=True)
    first, _ = read(loader), read(loader)
    loader.set_epoch(0)

    assert read(loader) == first
    assert taken[-1] is False
    loader.set_epoch(7)
    assert read(loader) == nth(7)


@pytest.mark.parametrize("count", [0, 1, 5, 200, 334])
def test_a_state_is_that_of_what_was_taken(taken, count):
    first = make_loader(**shuffled())
    read(first), read(first)
    iterator = iter(first)
    begun = [next(iterator)[1].tolist() for _ in range(count)]
    state = first.state_dict()
    other = make_loader(**shuffled())
    other.load_state_dict(state)

    assert begun + read(other) == stocks(3)[2]
    assert taken[2] is (count > 0)


def test_a_pass_that_is_resumed_is_not_the_one_that_was_begun(taken):
    first = make_loader(**shuffled())
    iterator = iter(first)
    begun = [next(iterator)[1].tolist() for _ in range(10)]
    state = first.state_dict()
    whole = begun + [labels.tolist() for _, labels in iterator]
    other = make_loader(**shuffled())
    read(other), read(other)
    other.load_state_dict(state)

    assert begun + read(other) == whole
    assert taken[-1] is False


def test_after_a_miss_nothing_is_begun_any_more(taken):
    loader = make_loader(shuffle=True)  # by torch's own generator, of which the loop draws
    for _ in range(4):
        read(loader)
        torch.rand(1)

    assert taken == [False] * 4
    assert start_of(loader)._job is None


def test_a_pass_that_is_broken_off_begins_no_other():
    loader = make_loader(**shuffled())
    read(loader), read(loader)
    next(iter(loader))

    assert start_of(loader)._job is None


def test_short_passes_are_left_alone(monkeypatch):
    monkeypatch.setattr(module, "LEAST_SECONDS", 100)
    loader = make_loader(**shuffled())
    for _ in range(3):
        read(loader)

    assert start_of(loader)._job is None


def test_a_thread_that_is_at_something_else_is_not_waited_for(taken):
    loader = make_loader(**shuffled())
    read(loader), read(loader)
    goes_on = threading.Event()
    executor = loader._opener.permutations.executor
    executor.submit(goes_on.wait)
    found = [labels.tolist() for _, labels in loader]
    again = [labels.tolist() for _, labels in loader]
    goes_on.set()

    assert taken[2:4] == [True, False]
    assert [found, again] == stocks(4)[2:]


def test_an_error_ahead_is_left_to_the_pass_itself(taken, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("no room")

    loader = make_loader(**shuffled())
    monkeypatch.setattr(module.NextStart, "_gather", fail)
    found = [read(loader) for _ in range(4)]

    assert found == stocks(4)
    assert not any(taken)


def test_what_was_begun_goes_with_the_loader():
    loader = make_loader(**shuffled())
    read(loader), read(loader)
    gathered = start_of(loader)._gathered.get()
    start_of(loader)._gathered.put(gathered)
    images = weakref.ref(gathered.batch[0])
    del gathered, loader
    gc.collect()

    assert images() is None


def test_a_forked_child_uses_nothing_of_its_parent(taken, monkeypatch):
    loader = make_loader(**shuffled())
    read(loader), read(loader)
    own = os.getpid()
    monkeypatch.setattr(module.os, "getpid", lambda: own + 1)

    assert [labels.tolist() for _, labels in loader] == stocks(3)[2]
    assert taken[2] is False


class Fickle(RandomSampler):
    """Decides by itself."""


def test_orders_of_the_callers_are_not_drawn_ahead(taken):
    data = make_data()
    generator = torch.Generator().manual_seed(1)
    loader = make_loader(data, sampler=Fickle(data, generator=generator))
    for _ in range(4):
        read(loader)

    assert taken == [False] * 4


@pytest.mark.parametrize("wrap", ["augmented", "standardized", "subset of augmented"])
def test_what_wrappers_make_is_not_made_ahead(taken, wrap):
    images = torch.rand(40, 2, 4, 4)
    data = TensorDataset(images, torch.arange(40))
    if wrap == "standardized":
        data = Standardize(data, ChannelStatistics.of(images))
    else:
        data = Augment(data, [RandomFlip()])
    if wrap.startswith("subset"):
        data = Subset(data, range(20))
    loader = make_loader(data, shuffle=True, seed=3)
    for _ in range(3):
        list(loader)

    assert not is_copy_alone(as_batched(data))
    assert start_of(loader) is None
    assert taken == []


class Stored:
    """A dataset of the caller's that converts what is stored by code of its own."""

    def __init__(self):
        self.stored_rows = as_batched(make_data())

    def convert_rows(self, batch):
        return batch


def test_conversions_of_the_callers_are_not_made_ahead():
    Stored.stored_rows = None  # as a class attribute, too

    assert not is_copy_alone(Stored())
    assert is_copy_alone(as_batched(Subset(make_data(), range(4))))


def test_an_executor_that_has_ended_begins_nothing():
    loader = make_loader(**shuffled())
    read(loader)
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    note = start_of(loader)
    note._is_wanted, note._num_ends = True, 1

    class Over:
        def next_length(self):
            return 0

    note.note_made(None, Over(), None, lambda: None, executor)

    assert note._job is None
