"""Streams of plain code are read here, and by a worker where that is quicker: the batches are the same."""

import math
import multiprocessing
import os

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from fastloader import FastLoader
from fastloader.engine import _stream_run
from fastloader.inspection._plain_code import is_plain_stream

LENGTH = 100


class Counting(IterableDataset):
    """Plain code."""

    def __init__(self, length=LENGTH):
        self.length = length

    def __iter__(self):
        for index in range(self.length):
            yield torch.full((2,), float(index)), index


class Sharing(Counting):
    """Plain code that divides its samples, as in torch's own example."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        if info is None:
            start, stop = 0, self.length
        else:
            each = math.ceil(self.length / float(info.num_workers))
            start, stop = info.id * each, min((info.id + 1) * each, self.length)
        return iter(range(start, stop))


class Delegating(Counting):
    """Plain code in two generators."""

    def __iter__(self):
        yield from self.halves(0)
        yield from self.halves(1)

    def halves(self, first):
        yield from range(first, self.length, 2)


class Telling(Counting):
    """Says where it is read."""

    def __iter__(self):
        for index in range(self.length):
            yield index, os.getpid()


class Remembering(Counting):
    """Keeps something from pass to pass."""

    def __iter__(self):
        self.passes = 1
        yield from range(self.length)


class Drawing(Counting):
    """Draws random numbers."""

    def __iter__(self):
        for _ in range(self.length):
            yield torch.rand(1)


class Stateful(Counting):
    """Knows where it is."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Seeing(Counting):
    """Uses more of its worker than its share."""

    def __iter__(self):
        info = get_worker_info()
        yield 0 if info is None else info.seed


def values(loader):
    lasts = (batch[-1] if isinstance(batch, list | tuple) else batch for batch in loader)
    return [torch.as_tensor(last).tolist() for last in lasts]


def num_children():
    return len(multiprocessing.active_children())


@pytest.fixture
def handed_on(monkeypatch):
    """Let a worker go on after the first batch."""
    monkeypatch.setattr(_stream_run, "FIRST_LOOK_SECONDS", 1e-9)
    monkeypatch.setattr(_stream_run, "SENDING_SECONDS", -math.inf)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Counting, True),
        (Sharing, True),
        (Delegating, True),
        (Telling, False),
        (Remembering, False),
        (Drawing, False),
        (Stateful, False),
        (Seeing, False),
    ],
)
def test_plain_streams_are_told_by_their_code(kind, expected):
    assert is_plain_stream(kind()) is expected


def test_an_iterator_that_the_dataset_keeps_is_not_plain():
    dataset = Counting()
    dataset.length = iter(range(3))

    assert not is_plain_stream(dataset)


@pytest.mark.parametrize("kind", [Counting, Sharing, Delegating])
def test_small_samples_of_plain_streams_take_no_worker(kind, no_leaks):
    loader = FastLoader(kind(), 8)

    found = [values(loader), values(loader)]

    assert num_children() == 0
    assert loader.num_workers == 1
    assert found == [values(FastLoader(kind(), 8, num_workers=0))] * 2


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [Counting, Sharing, Delegating])
@pytest.mark.parametrize("batch_size", [8, None])
def test_a_worker_goes_on_where_a_stream_was_left(kind, batch_size, handed_on, no_leaks):
    expected = [values(FastLoader(kind(), batch_size, num_workers=0))] * 2
    with_worker = []

    loader = FastLoader(kind(), batch_size)
    found = [values(loader)]
    with_worker.append(num_children())
    found.append(values(loader))
    with_worker.append(num_children())
    del loader

    assert found == expected
    assert with_worker == [1, 1]


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_read", [1, 2, 5])
def test_a_pass_that_was_handed_on_can_be_resumed(num_read, handed_on, no_leaks):
    loader = FastLoader(Counting(), 8)
    iterator = iter(loader)
    for _ in range(num_read):
        next(iterator)
    state = loader.state_dict()
    iterator.close()

    resumed = FastLoader(Counting(), 8)
    resumed.load_state_dict(state)

    assert values(resumed) == values(FastLoader(Counting(), 8, num_workers=0))[num_read:]


@pytest.mark.multiprocess
def test_a_stream_that_was_changed_meanwhile_stays_here(handed_on, no_leaks):
    dataset = Counting()
    loader = FastLoader(dataset, 8)
    iterator = iter(loader)
    next(iterator)
    dataset.length = 10_000

    rest = sum(1 for _ in iterator)

    assert num_children() == 0
    assert rest == LENGTH // 8


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "options",
    [{"num_workers": 1}, {"persistent_workers": True}, {"worker_init_fn": print}],
    ids=str,
)
def test_who_asks_for_workers_gets_them(options):
    iterator = iter(FastLoader(Counting(), 8, **options))

    next(iterator)

    assert num_children() == 1
    iterator.close()


@pytest.mark.multiprocess
def test_a_stream_that_draws_is_read_by_a_worker():
    iterator = iter(FastLoader(Drawing(), 8))

    next(iterator)

    assert num_children() == 1
    iterator.close()
