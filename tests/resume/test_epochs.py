"""Every pass is the next epoch, and all who want to know are told."""

import pickle

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, Subset

from fastloader import FastLoader
from fastloader.datasets import DatasetWrapper
from fastloader.errors import SettingsError
from tests.resume.datasets import Epochs, Numbers, PrivateEpochs

pytestmark = pytest.mark.multiprocess


def fork(num_workers):
    return {
        "num_workers": num_workers,
        "multiprocessing_context": "fork" if num_workers else None,
    }


def plain(batches):
    return [torch.as_tensor(batch).tolist() for batch in batches]


def flat(batches):
    return [index for batch in batches for index in batch]


def epochs_seen(loader):
    return {epoch for batch in loader for epoch in batch.tolist()}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Epochs, PrivateEpochs])
@pytest.mark.parametrize(
    "wrap",
    [lambda d: d, lambda d: DatasetWrapper(d, field=()), lambda d: Subset(d, range(4))],
    ids=["itself", "wrapper", "subset"],
)
def test_the_dataset_is_told_in_all_its_copies(num_workers, kind, wrap):
    loader = FastLoader(wrap(kind()), 2, **fork(num_workers))

    assert [epochs_seen(loader) for _ in range(3)] == [{0}, {1}, {2}]


def test_live_workers_are_told_and_live_on():
    loader = FastLoader(PrivateEpochs(), 2, **fork(2), persistent_workers=True)
    pids = []
    for epoch in range(3):
        iterator = iter(loader)
        pids.append([process.pid for process in iterator._workers])
        assert epochs_seen(iterator) == {epoch}

    assert pids[0] == pids[1] == pids[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_can_be_chosen_and_is_counted_on_from(num_workers):
    dataset = Epochs()
    loader = FastLoader(dataset, 2, **fork(num_workers))
    epochs_seen(loader)

    loader.set_epoch(7)

    assert dataset.epoch == 7
    assert [epochs_seen(loader) for _ in range(2)] == [{7}, {8}]


def test_choosing_an_epoch_does_not_start_workers_anew():
    loader = FastLoader(Epochs(), 2, **fork(2))
    first = iter(loader)
    pids = [process.pid for process in first._workers]
    epochs_seen(first)

    loader.set_epoch(7)
    second = iter(loader)

    assert [process.pid for process in second._workers] == pids
    assert epochs_seen(second) == {7}


def test_who_sets_the_epoch_of_the_dataset_is_followed():
    dataset = Epochs()
    loader = FastLoader(dataset, 2, num_workers=0)
    epochs_seen(loader)

    dataset.set_epoch(5)

    assert [epochs_seen(loader) for _ in range(2)] == [{5}, {6}]


@pytest.mark.parametrize("as_batches", [False, True])
def test_a_distributed_sampler_moves_on_by_itself(as_batches):
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0, seed=3)
    if as_batches:
        loader = FastLoader(Numbers(), batch_sampler=BatchSampler(sampler, 4, False))
    else:
        loader = FastLoader(Numbers(), 4, sampler=sampler)
    expected = []
    for epoch in range(3):
        other = DistributedSampler(Numbers(), num_replicas=2, rank=0, seed=3)
        other.set_epoch(epoch)
        expected.append(list(other))

    assert [flat(plain(loader)) for _ in range(3)] == expected


class Counting(Sampler):
    """Sets the next epoch at the end of its order, as one of Accelerate's does."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 8

    def __iter__(self):
        yield from range(8 * self.epoch, 8 * self.epoch + 8)
        self.set_epoch(self.epoch + 1)


@pytest.mark.multiprocess
@pytest.mark.parametrize("options", [fork(2), {"num_workers": 0}], ids=["workers", "none"])
def test_a_sampler_that_counts_on_at_the_end_of_a_short_order_is_read_in_each_epoch(options):
    loader = FastLoader(Numbers(), 4, sampler=Counting(), **options)

    assert [flat(plain(loader)) for _ in range(3)] == [
        list(range(8 * epoch, 8 * epoch + 8)) for epoch in range(3)
    ]


def test_who_sets_the_epoch_of_the_sampler_is_followed():
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0, seed=3)
    dataset = Epochs(40)
    loader = FastLoader(dataset, 4, sampler=sampler, num_workers=0)
    epochs_seen(loader)

    sampler.set_epoch(5)

    assert epochs_seen(loader) == {5}
    assert (sampler.epoch, dataset.epoch) == (5, 5)


@pytest.mark.parametrize("name", ["_epoch", "current_epoch"])
@pytest.mark.parametrize("before", [-1, 0], ids=["no epoch yet", "first epoch"])
def test_a_sampler_that_keeps_the_epoch_by_another_name_is_followed(name, before):
    class Rotated(Sampler):
        def __init__(self):
            setattr(self, name, before)

        def set_epoch(self, epoch):
            setattr(self, name, epoch)

        def __len__(self):
            return 4

        def __iter__(self):
            return iter(range(getattr(self, name), getattr(self, name) + 4))

    loader = FastLoader(Numbers(), 4, sampler=Rotated(), num_workers=0)
    first = plain(loader)
    seen = []
    for epoch in (5, 6):
        loader.sampler.set_epoch(epoch)
        seen.append(plain(loader))

    assert first == [[0, 1, 2, 3]]
    assert seen == [[[5, 6, 7, 8]], [[6, 7, 8, 9]]]


class Turned(Sampler):
    """Keeps the epoch by a name that tells nothing."""

    def __init__(self, turn):
        self.turn = turn

    def set_epoch(self, epoch):
        self.turn = int(epoch)

    def __len__(self):
        return 4

    def __iter__(self):
        return iter(range(self.turn, self.turn + 4))


@pytest.mark.parametrize("before", [None, -1, 0])
def test_the_code_of_a_sampler_tells_where_it_keeps_the_epoch(before):
    loader = FastLoader(Numbers(), 4, sampler=Turned(before), num_workers=0)
    seen = []
    for epoch in (5, None, 7):
        if epoch is not None:
            loader.sampler.set_epoch(epoch)
        seen += plain(loader)

    assert seen == [[5, 6, 7, 8], [6, 7, 8, 9], [7, 8, 9, 10]]


@pytest.mark.parametrize("wrap", [True, False], ids=["batch_sampler", "sampler"])
def test_the_same_epoch_again_is_the_same_order_again(wrap):
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0, seed=3)
    order = {"batch_sampler": BatchSampler(sampler, 4, False)} if wrap else {"sampler": sampler}
    sizes = {} if wrap else {"batch_size": 4}
    loader = FastLoader(Numbers(), **sizes, **order, num_workers=0)
    stock = DataLoader(Numbers(), **sizes, **order)

    ours, theirs = [], []
    for epoch in (3, 3, 3, 4, 0, 0):
        sampler.set_epoch(epoch)
        ours.append(plain(loader))
        assert sampler.epoch == epoch
        sampler.set_epoch(epoch)
        theirs.append(plain(stock))

    assert ours == theirs
    assert type(pickle.loads(pickle.dumps(sampler)).epoch) is int


def test_the_same_epoch_told_again_before_the_first_batch_changes_nothing():
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0, seed=3)
    loader = FastLoader(Epochs(40), 4, sampler=sampler, num_workers=0)

    seen = []
    for epoch in (0, 1, None, None):
        iterator = iter(loader)
        if epoch is not None:
            sampler.set_epoch(epoch)
        seen.append(epochs_seen(iterator))

    assert seen == [{0}, {1}, {2}, {3}]


def test_the_order_of_a_seed_depends_on_the_epoch_alone():
    loader = FastLoader(Numbers(), 4, shuffle=True, seed=5, num_workers=0)
    epochs = [plain(loader) for _ in range(3)]
    other = FastLoader(Numbers(), 4, shuffle=True, seed=5, num_workers=0)

    other.set_epoch(2)

    assert plain(other) == epochs[2]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_passes_at_once_are_two_epochs(num_workers):
    loader = FastLoader(PrivateEpochs(), 2, **fork(num_workers))

    seen = [
        (first.tolist(), second.tolist()) for first, second in zip(loader, loader, strict=True)
    ]

    assert seen == [([0, 0], [1, 1])] * 4


def test_choosing_another_epoch_lets_go_of_a_loaded_place():
    loader = FastLoader(Numbers(), 4, shuffle=True, seed=5, num_workers=0)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.set_epoch(0)
    kept = len(list(loader))
    loader.load_state_dict(state)
    loader.set_epoch(3)

    assert (kept, len(list(loader))) == (8, 10)


def test_a_pickled_loader_knows_its_epoch():
    loader = FastLoader(Numbers(), 4, shuffle=True, seed=5, num_workers=0)
    plain(loader)
    copy = pickle.loads(pickle.dumps(loader))

    assert plain(copy) == plain(loader)


@pytest.mark.parametrize("epoch", [-1, 1.5, None], ids=str)
def test_what_is_no_number_of_an_epoch_is_refused(epoch):
    with pytest.raises(SettingsError, match=str(epoch)):
        FastLoader(Numbers(), 4, num_workers=0).set_epoch(epoch)


def test_loaders_over_one_dataset_keep_their_workers_though_each_tells_it_its_own_epoch():
    dataset = Epochs()
    training, validation = (FastLoader(dataset, 2, num_workers=1) for _ in range(2))
    validation.set_epoch(5)

    pids = []
    for _ in range(3):
        for loader in (training, validation):
            iterator = iter(loader)
            pids.append([process.pid for process in iterator._workers])
            list(iterator)

    assert pids[0::2] == [pids[0]] * 3
    assert pids[1::2] == [pids[1]] * 3


def test_a_new_loader_begins_at_the_first_epoch_although_another_has_read_the_dataset():
    dataset = Epochs()
    first = FastLoader(dataset, 2, num_workers=0)
    [epochs_seen(first) for _ in range(3)]

    assert epochs_seen(FastLoader(dataset, 2, num_workers=0)) == {0}


def test_an_epoch_that_was_set_before_there_was_a_loader_is_followed():
    dataset = Epochs()
    dataset.set_epoch(4)

    assert epochs_seen(FastLoader(dataset, 2, num_workers=0)) == {4}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_that_is_set_after_iter_is_followed_too(num_workers):
    loader = FastLoader(Epochs(), 2, shuffle=True, seed=5, **fork(num_workers))
    iterator = iter(loader)

    loader.sampler.set_epoch(6)

    assert epochs_seen(iterator) == {6}
    assert epochs_seen(loader) == {7}


def test_workers_live_on_when_an_epoch_is_set_after_iter():
    loader = FastLoader(Epochs(), 2, shuffle=True, seed=5, **fork(2))
    iterator = iter(loader)
    pids = [process.pid for process in iterator._workers]

    loader.sampler.set_epoch(6)
    next(iterator)

    assert [process.pid for process in iterator._workers] == pids
