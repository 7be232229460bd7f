"""A loader of an iterable dataset goes on where its consumer was in each worker's share."""

import json
import logging
import pickle

import pytest
import torch

from fastloader import FastLoader
from fastloader.datasets import DatasetWrapper
from fastloader.errors import ResumeError
from tests.resume.datasets import (
    DrawingStream,
    StatefulStream,
    Stream,
    StreamOfStatefulIterators,
    Unpicklable,
)

pytestmark = pytest.mark.multiprocess

KINDS = [Stream, DrawingStream, StatefulStream, StreamOfStatefulIterators]


def make(dataset, num_workers, batch_size=3, **options):
    if num_workers:
        options.setdefault("multiprocessing_context", "fork")
    return FastLoader(dataset, batch_size, num_workers=num_workers, seed=1, **options)


def plain(batches):
    return [torch.as_tensor(batch).tolist() for batch in batches]


def take(iterator, count):
    return plain(next(iterator) for _ in range(count))


def saved(loader):
    return pickle.loads(pickle.dumps(loader.state_dict()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_what_is_left_comes_in_the_same_order(kind, num_workers, count):
    loader = make(kind((14, 9)), num_workers)
    iterator = iter(loader)
    take(iterator, count)
    state = saved(loader)
    left = plain(iterator)
    fresh = make(kind((14, 9)), num_workers)

    fresh.load_state_dict(state)

    assert plain(fresh) == left


@pytest.mark.parametrize("num_workers", [0, 2])
def test_single_samples_go_on_too(num_workers):
    loader = make(StatefulStream((14, 9)), num_workers, batch_size=None)
    iterator = iter(loader)
    take(iterator, 9)
    state = saved(loader)
    left = plain(iterator)
    fresh = make(StatefulStream((14, 9)), num_workers, batch_size=None)

    fresh.load_state_dict(state)

    assert plain(fresh) == left


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_epochs_after_are_those_of_an_undisturbed_run(num_workers):
    undisturbed = make(StatefulStream((14, 9)), num_workers)
    epochs = [plain(undisturbed) for _ in range(4)]
    loader = make(StatefulStream((14, 9)), num_workers)
    plain(loader)
    take(iter(loader), 5)
    state = saved(loader)
    fresh = make(StatefulStream((14, 9)), num_workers)

    fresh.load_state_dict(state)

    assert [plain(fresh) for _ in range(3)] == [epochs[1][5:], epochs[2], epochs[3]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_the_end_the_next_epoch_comes_as_the_dataset_left_it(num_workers):
    loader = make(StatefulStream((14, 9)), num_workers)
    plain(loader)
    state = saved(loader)
    fresh = make(StatefulStream((14, 9)), num_workers)

    fresh.load_state_dict(state)

    assert plain(fresh) == plain(loader)


def test_an_epoch_can_be_resumed_again_and_again():
    epoch = plain(make(StatefulStream((14, 9)), 2))
    seen, state = [], make(StatefulStream((14, 9)), 2).state_dict()
    for _ in range(4):
        loader = make(StatefulStream((14, 9)), 2)
        loader.load_state_dict(state)
        seen += take(iter(loader), 2)
        state = saved(loader)

    assert seen == epoch[:8]


def test_a_dataset_with_a_state_does_not_read_again():
    dataset = StatefulStream((30,))
    loader = make(dataset, 0)
    take(iter(loader), 8)
    state = saved(loader)
    fresh = StatefulStream((30,))
    loader = make(fresh, 0)
    loader.load_state_dict(state)

    list(loader)

    assert fresh.num_read == 6


def test_one_without_a_state_reads_again_and_says_so(caplog):
    loader = make(Stream((30,)), 0)
    take(iter(loader), 8)
    fresh = make(Stream((30,)), 0)
    fresh.load_state_dict(saved(loader))

    with caplog.at_level(logging.WARNING, "fastloader"):
        list(fresh)

    assert "Stream has no state_dict" in caplog.text
    assert "24 samples" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_wrapper_keeps_the_state_of_its_base(num_workers):
    loader = make(DatasetWrapper(StatefulStream((14, 9)), field=()), num_workers)
    iterator = iter(loader)
    take(iterator, 4)
    state = json.loads(json.dumps(loader.state_dict()))
    left = plain(iterator)
    fresh = make(DatasetWrapper(StatefulStream((14, 9)), field=()), num_workers)

    fresh.load_state_dict(state)

    assert plain(fresh) == left


def test_another_number_of_workers_is_refused():
    loader = make(StatefulStream((14, 9)), 2)
    take(iter(loader), 4)
    state = saved(loader)

    with pytest.raises(ResumeError, match="num_workers=2"):
        make(StatefulStream((14, 9)), 1).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"workers": []},
        {"workers": {"first": {}}},
        {"workers": {"0": {"number": 1}}},
        {"next_worker": None},
        {"batch_size": "3"},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused(change):
    loader = make(Stream((14,)), 0)
    take(iter(loader), 2)
    state = {**saved(loader), **change}

    with pytest.raises(ResumeError, match=f"damaged: {next(iter(change))} should be"):
        make(Stream((14,)), 0).load_state_dict(state)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_cannot_be_pickled_is_an_error(num_workers):
    with pytest.raises(ResumeError, match="state_dict of Unpicklable"):
        next(iter(make(Unpicklable((14,)), num_workers)))


@pytest.mark.parametrize("kind", [Stream, StreamOfStatefulIterators])
@pytest.mark.parametrize("count", [0, 4, 7])
def test_threads_go_on_in_the_same_order(kind, count):
    loader = make(kind((14, 9)), 2, workers="threads", multiprocessing_context=None)
    iterator = iter(loader)
    take(iterator, count)
    state = saved(loader)
    left = plain(iterator)
    fresh = make(kind((14, 9)), 2, workers="threads", multiprocessing_context=None)

    fresh.load_state_dict(state)

    assert plain(fresh) == left


def test_threads_cannot_share_a_dataset_with_a_state():
    loader = make(StatefulStream((14, 9)), 2, workers="threads", multiprocessing_context=None)

    with pytest.raises(ResumeError, match="threads read StatefulStream"):
        loader.state_dict()
