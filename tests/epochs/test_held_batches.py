"""Whole batches of data in memory are made in this process, by a thread or by workers: nobody can tell."""

import multiprocessing
import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from fastloader import FastLoader
from fastloader.datasets import Augment, ChannelStatistics, Standardize
from fastloader.datasets._batched import TensorRows, as_batched
from fastloader.datasets._held import copies_rows, is_held, read_held_state
from fastloader.engine import Place
from fastloader.sampling._compact import IndexArray
from fastloader.transforms import GaussianNoise, RandomFlip
from tests.engine.test_placed_run import Moving, num_children, rows

ALL = (Place.HERE, Place.AHEAD, Place.WORKERS)
images = torch.arange(200 * 12).reshape(200, 1, 3, 4).float()
pairs = TensorDataset(images, torch.arange(200))


def augmented():
    statistics = ChannelStatistics.of(pairs)
    return Augment(Standardize(pairs, statistics), [RandomFlip(), GaussianNoise(0.5)])


def moving(loader, num_batches=3, places=ALL):
    loader._opener._placement = placement = Moving(num_batches, places)
    return placement


class OfUsers(Dataset):
    """Makes whole batches by code of its own."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return images[index]

    def get_batch(self, indices):
        return images[list(indices)]


class Wrapped(Standardize):
    """A wrapper of the user's."""


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_batches", [1, 3, 7])
@pytest.mark.parametrize("places", [ALL, ALL[:2], ALL[1:], ALL[::2]], ids=str)
def test_batches_are_the_same_wherever_they_are_made(num_batches, places):
    loader = FastLoader(augmented(), 8, shuffle=True, seed=3)
    placement = moving(loader, num_batches, places)
    expected = FastLoader(augmented(), 8, shuffle=True, seed=3, num_workers=0)

    for _ in range(4):
        assert rows(loader) == rows(expected)

    assert set(placement.places) == set(places)
    assert loader.num_workers == 0


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_read", [2, 4, 8, 13, 25])
def test_a_place_in_the_epoch_is_gone_on_from(num_read):
    whole = rows(FastLoader(augmented(), 8, shuffle=True, seed=3, num_workers=0))
    loader = FastLoader(augmented(), 8, shuffle=True, seed=3)
    moving(loader)
    iterator = iter(loader)
    for _ in range(num_read):
        next(iterator)

    resumed = FastLoader(augmented(), 8, shuffle=True, seed=3)
    resumed.load_state_dict(loader.state_dict())

    assert rows(resumed) == whole[num_read:]


def test_a_thread_makes_two_batches_ahead():
    loader = FastLoader(augmented(), 8)
    moving(loader, 2, [Place.HERE, Place.AHEAD])
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)

    assert loader.stats.snapshot().num_queued_batches == 2
    iterator.close()


def test_a_thread_makes_one_batch_ahead_where_there_is_no_memory_for_two():
    loader = FastLoader(augmented(), 8)
    loader._choice.budget_bytes = 1000  # of 384 and 64 bytes a batch
    moving(loader, 2, [Place.HERE, Place.AHEAD])
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)

    assert loader.stats.snapshot().num_queued_batches == 2
    iterator.close()
    loader._choice.budget_bytes = 800
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)

    assert loader.stats.snapshot().num_queued_batches == 1
    iterator.close()


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_read", [0, 2, 5, 8])
def test_a_pass_that_is_broken_off_leaves_nothing(num_read):
    children, threads = num_children(), set(threading.enumerate())
    loader = FastLoader(augmented(), 8)
    moving(loader)
    iterator = iter(loader)
    for _ in range(num_read):
        next(iterator)

    del iterator
    assert len(rows(loader)) == 25
    del loader

    assert num_children() == children
    assert set(threading.enumerate()) <= threads


@pytest.mark.multiprocess
@pytest.mark.parametrize("place", ALL, ids=lambda place: place.name)
def test_an_error_comes_at_its_batch_and_the_others_come_too(place):
    order = [*range(40), 999, *range(41, 200)]
    loader = FastLoader(augmented(), 4, sampler=order)
    moving(loader, 1, (place,))
    iterator, labels, notes = iter(loader), [], []
    while True:
        try:
            labels += next(iterator)[1].tolist()
        except StopIteration:
            break
        except IndexError as error:
            notes.append(str(error.__notes__))

    assert labels == [*range(40), *range(44, 200)]
    assert len(notes) == 1
    assert "batch 10" in notes[0]


@pytest.mark.multiprocess
@pytest.mark.parametrize("places", [(Place.AHEAD,), (Place.WORKERS,)], ids=str)
def test_what_the_loop_changes_shows_in_the_next_batch(places):
    data = torch.zeros(64, 1, 2, 2)
    dataset = Augment(TensorDataset(data, torch.arange(64)), RandomFlip())
    loader = FastLoader(dataset, 4)
    placement = moving(loader, 1, places)

    seen = []
    for number, [batch, _] in enumerate(loader):
        seen.append(batch.unique().tolist())
        if number == 7:
            data += 1

    assert seen == [[0.0]] * 8 + [[1.0]] * 8
    assert placement.places[-1] is Place.HERE
    assert set(placement.places[:-1]) == set(places)


def test_no_worker_copies_rows_that_threads_copy_as_fast(monkeypatch):
    monkeypatch.setattr(
        torch, "get_num_threads", lambda: 1024
    )  # whatever tests before have set
    loader = FastLoader(pairs, 8)
    list(loader)
    assert loader._opener._placement._others == (Place.AHEAD,)

    monkeypatch.setattr(torch, "get_num_threads", lambda: 0)
    list(loader)
    assert loader._opener._placement._others == (Place.AHEAD, Place.WORKERS)


@pytest.mark.parametrize(
    ("dataset", "is_copied"),
    [
        (pairs, True),
        (StackDataset(Subset(pairs, [3, 1]), Subset(pairs, [1, 2])), True),
        (augmented(), False),
        (Subset(augmented(), [1]), False),
    ],
)
def test_it_is_known_whether_rows_are_only_copied(dataset, is_copied):
    assert copies_rows(as_batched(dataset)) is is_copied


@pytest.mark.multiprocess
@pytest.mark.parametrize("place", [Place.AHEAD, Place.WORKERS], ids=lambda place: place.name)
def test_augmentation_may_be_turned_off_within_a_pass(place):
    dataset = Augment(pairs, GaussianNoise(0.5))
    loader = FastLoader(dataset, 8)
    moving(loader, 1, (place,))

    iterator = iter(loader)
    first = next(iterator)[0]
    dataset.training = False
    second = next(iterator)[0]

    assert not torch.equal(first, images[:8])
    assert torch.equal(second, images[8:16])


def test_generators_of_the_process_are_left_alone():
    loader = FastLoader(augmented(), 8, shuffle=True, seed=3)
    moving(loader, 1, (Place.AHEAD,))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()

    list(loader)

    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


class Own(RandomSampler):
    """A sampler of the caller's."""


def drawing(generator):
    return RandomSampler(pairs, replacement=True, generator=generator)


@pytest.mark.parametrize(
    ("options", "may_be_ahead"),
    [
        ({"shuffle": True}, True),
        ({"sampler": [3, 1, 2] * 8}, True),
        ({"sampler": drawing(None)}, True),
        ({"sampler": DistributedSampler(pairs, num_replicas=2, rank=0)}, True),
        ({"sampler": SubsetRandomSampler(range(16))}, True),
        ({"sampler": drawing(torch.Generator())}, False),
        ({"sampler": Own(pairs)}, False),
        ({"batch_sampler": [[3, 1], [2]] * 8}, True),
        ({"batch_sampler": BatchSampler(Own(pairs), 8, False)}, False),
        ({"batch_sampler": iter([[3, 1], [2]])}, False),
    ],
    ids=range(10),
)
def test_nothing_is_drawn_early_that_may_depend_on_the_loop(options, may_be_ahead):
    loader = FastLoader(pairs, **options)
    placement = moving(loader, 1, (Place.AHEAD,))

    list(loader)

    assert (placement.places != []) is may_be_ahead


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"on_error": "skip"},
        {"batch_transform": list},
        {"collate_fn": list},
    ],
    ids=lambda options: next(iter(options)),
)
def test_who_chooses_or_gives_other_code_gets_batches_as_they_are_asked_for(options):
    loader = FastLoader(pairs, 8, **options)
    placement = moving(loader, 1, (Place.AHEAD,))

    list(loader)

    assert placement.places == []


def test_a_variable_of_the_environment_wins(monkeypatch):
    monkeypatch.setenv("FASTLOADER_NUM_WORKERS", "0")
    loader = FastLoader(pairs, 8)
    placement = moving(loader, 1, (Place.AHEAD,))

    list(loader)

    assert placement.places == []


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (pairs, True),
        (Subset(pairs, [3, 1]), True),
        (ConcatDataset([pairs, Subset(pairs, [1])]), True),
        (StackDataset(pairs, pairs), True),
        (augmented(), True),
        (TensorDataset(torch.ones(2, requires_grad=True)), False),
        (OfUsers(), False),
        (ConcatDataset([pairs, OfUsers()]), False),
        (Augment(pairs, torch.nn.Identity()), False),
        (Wrapped(pairs, ChannelStatistics.of(pairs)), False),
    ],
    ids=range(10),
)
def test_it_is_known_whose_code_makes_a_batch(dataset, expected):
    assert is_held(as_batched(dataset)) is expected


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: images.add_(1),
        lambda dataset: setattr(dataset, "training", False),
        lambda dataset: setattr(dataset.dataset, "statistics", ChannelStatistics.of(pairs)),
        lambda dataset: dataset.set_epoch(3),
    ],
    ids=["data", "training", "statistics", "epoch"],
)
def test_changes_of_the_caller_are_seen(change):
    dataset = augmented()
    batched = as_batched(dataset)
    before = read_held_state(batched)
    assert read_held_state(batched) == before

    change(dataset)

    assert read_held_state(batched) != before


def test_it_says_that_batches_may_be_made_ahead():
    assert "a thread" in FastLoader(pairs, 8).explain()
    assert "a thread" not in FastLoader(pairs, 8, num_workers=0).explain()


@pytest.mark.multiprocess
def test_no_worker_is_forked_beside_threads_of_others():
    loader = FastLoader(pairs, 8)
    placement = moving(loader, 1, ALL)
    before, ending = num_children(), threading.Event()
    thread = threading.Thread(target=ending.wait)
    thread.start()
    try:
        iterator = iter(loader)
        labels = torch.cat([next(iterator)[1] for _ in range(10)])
        assert num_children() == before
    finally:
        ending.set()
        thread.join()

    assert labels.tolist() == [*range(80)]
    assert Place.WORKERS not in placement.places


@pytest.mark.multiprocess
def test_a_child_that_is_forked_within_a_pass_goes_on_by_itself():
    loader = FastLoader(pairs, 8)
    moving(loader, 1, (Place.AHEAD,))
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def go_on():
        labels = [batch[1].tolist() for batch in iterator]
        theirs.send((labels, len(list(loader))))

    child = context.Process(target=go_on)
    child.start()

    expected = [[*range(start, start + 8)] for start in range(40, 200, 8)]
    assert ours.poll(30)
    assert ours.recv() == (expected, 25)
    child.join()
    assert [batch[1].tolist() for batch in iterator] == expected


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}], ids=["automatic", "0"])
def test_data_in_memory_is_asked_for_by_arrays(options, monkeypatch):
    asked = []
    get_batch = TensorRows.get_batch
    monkeypatch.setattr(
        TensorRows, "get_batch", lambda rows, of: asked.append(type(of)) or get_batch(rows, of)
    )
    list(FastLoader(pairs, 64, shuffle=True, **options))

    assert asked == 4 * [IndexArray]


def test_a_dataset_of_the_caller_s_is_asked_for_by_lists():
    asked = []

    class Asked(OfUsers):
        def get_batch(self, indices):
            asked.append(indices)
            return super().get_batch(indices)

    list(FastLoader(Asked(), 64, shuffle=True))

    assert len(asked) == 4
    assert all(isinstance(indices, list) for indices in asked)
