"""What is drawn ahead is torch's order, and used only where it is that."""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler

from fastloader.sampling import _permutations
from fastloader.sampling._epoch_order import begin_epoch
from fastloader.sampling._foretelling import foretell_generators
from fastloader.sampling._permutations import PermutationsAhead


@pytest.fixture(autouse=True)
def short_orders_too(monkeypatch):
    monkeypatch.setattr(_permutations, "LEAST_AHEAD", 1)


@pytest.fixture(scope="module")
def executor():
    with ThreadPoolExecutor(1, "fastloader-ahead") as executor:
        yield executor


class Here:
    """An executor whose jobs are done when they are given."""

    def __init__(self):
        self.num_jobs = 0

    def submit(self, job, *arguments):
        self.num_jobs += 1
        future = Future()
        try:
            future.set_result(job(*arguments))
        except MemoryError as error:
            future.set_exception(error)
        return future


class Orders:
    """Epochs of one loader, and how often torch shuffled in the thread that reads them."""

    def __init__(
        self, executor, *, num_samples=None, own=False, of_loader=False, seed=None, num_passes=1
    ):
        generator = torch.Generator().manual_seed(5) if own else None
        self.sampler = RandomSampler(range(50), num_samples=num_samples, generator=generator)
        self.batches = BatchSampler(self.sampler, 8, drop_last=False)
        self.generator = torch.Generator().manual_seed(7) if of_loader else None
        self.seed = seed
        self.ahead = PermutationsAhead()
        self.ahead.executor = executor
        self.ahead.num_passes = num_passes

    def stock(self):
        if self.seed is None:
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return list(self.batches)

    def ours(self, epoch):
        self.ahead.twins_of = partial(
            foretell_generators, generator=self.generator, seed=self.seed
        )
        order = begin_epoch(
            self.sampler,
            self.batches,
            is_iterable=False,
            generator=self.generator,
            seed=self.seed,
            epoch=epoch,
            permutations=self.ahead,
        )
        return [list(drawn.indices) for drawn in order.batches]

    def states(self):
        generators = (torch.default_generator, self.sampler.generator, self.generator)
        return [g.get_state().tolist() for g in generators if g is not None]


def is_whole(order):
    return sorted(chain.from_iterable(order)) == list(range(50))


class Shuffles:
    """Counts the permutations that are drawn in this thread."""

    def __init__(self, monkeypatch):
        self.count = 0
        shuffle, mine = torch.randperm, threading.get_ident()

        def counted(*arguments, **options):
            self.count += threading.get_ident() == mine
            return shuffle(*arguments, **options)

        monkeypatch.setattr(torch, "randperm", counted)


@given(
    num_samples=st.none() | st.integers(1, 150),
    own=st.booleans(),
    of_loader=st.booleans(),
    seed=st.none() | st.just(3),
    num_passes=st.integers(1, 3),
    disturbed=st.sets(st.integers(0, 5), max_size=2),
)
def test_orders_and_generators_are_torchs(executor, disturbed, **options):
    outcomes = []
    for is_ours in (False, True):
        torch.manual_seed(1)
        orders = Orders(executor, **options)
        found = []
        for epoch in range(6):
            found.append(orders.ours(epoch) if is_ours else orders.stock())
            found.append(orders.states())
            if epoch in disturbed:  # somebody else draws
                torch.rand(1)
                torch.rand(1, generator=orders.sampler.generator)
        outcomes.append(found)

    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("own", [False, True])
def test_from_the_third_epoch_on_nothing_is_shuffled_by_who_reads(monkeypatch, executor, own):
    orders, shuffles = Orders(executor, own=own), Shuffles(monkeypatch)

    counts = []
    for epoch in range(5):
        orders.ours(epoch)
        counts.append(shuffles.count)
        executor.submit(int).result()  # all of it is drawn

    assert counts[1] > counts[0] > 0
    assert counts[1:] == [counts[1]] * 4


@pytest.mark.parametrize("num_passes", [1, 3])
def test_the_thread_is_woken_for_several_passes_at_once(num_passes):
    here = Here()
    orders = Orders(here, num_passes=num_passes)

    for epoch in range(8):
        orders.ours(epoch)

    assert here.num_jobs == -(-7 // num_passes)


def test_a_generator_that_is_left_alone_again_is_drawn_from_ahead_again():
    here = Here()
    orders = Orders(here)

    for epoch in range(12):
        orders.ours(epoch)
        if epoch % 2:
            torch.rand(1)  # every other time what was drawn is used

    assert here.num_jobs == 11


def test_who_draws_from_the_generator_is_noticed_and_nothing_more_is_drawn_ahead():
    here = Here()
    orders = Orders(here)

    for epoch in range(8):
        orders.ours(epoch)
        torch.rand(1)

    assert here.num_jobs == 2


@pytest.mark.parametrize("length", [10, 60], ids=["short", "long"])
def test_few_numbers_and_very_many_are_not_drawn_ahead(monkeypatch, length):
    monkeypatch.setattr(_permutations, "LEAST_AHEAD", 20)
    monkeypatch.setattr(_permutations, "_MOST_AHEAD", 55)
    here = Here()
    orders = Orders(here)
    orders.sampler.data_source = range(length)

    for epoch in range(4):
        orders.ours(epoch)

    assert here.num_jobs == 0


def test_nobody_waits_for_a_job_that_has_not_begun():
    with ThreadPoolExecutor(1) as executor:
        orders, is_free = Orders(executor), threading.Event()
        executor.submit(is_free.wait)
        try:
            found = [orders.ours(epoch) for epoch in range(4)]
        finally:
            is_free.set()

    assert all(map(is_whole, found))


def test_nobody_waits_for_a_job_of_the_process_that_forked_this_one(monkeypatch, executor):
    orders, is_free, has_begun = Orders(executor), threading.Event(), threading.Event()
    orders.ours(0)
    shuffle = torch.randperm

    def slow(*arguments, **options):
        if threading.current_thread() is not threading.main_thread():
            has_begun.set()
            is_free.wait()
        return shuffle(*arguments, **options)

    monkeypatch.setattr(torch, "randperm", slow)
    orders.ours(1)
    has_begun.wait()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    try:
        assert is_whole(orders.ours(2))
    finally:
        is_free.set()


def test_threads_that_have_ended_draw_nothing():
    executor = ThreadPoolExecutor(1)
    orders = Orders(executor)
    executor.shutdown()

    for epoch in range(3):
        assert is_whole(orders.ours(epoch))


def test_an_error_of_the_thread_is_none_of_the_readers(monkeypatch):
    here = Here()
    orders = Orders(here)
    orders.ours(0)
    shuffle, fails = torch.randperm, []

    def failing(*arguments, **options):
        if fails:
            raise fails.pop()
        return shuffle(*arguments, **options)

    monkeypatch.setattr(torch, "randperm", failing)
    submit = here.submit

    def submit_and_fail(job, *arguments):
        fails.append(MemoryError())
        return submit(job, *arguments)

    monkeypatch.setattr(here, "submit", submit_and_fail)

    for epoch in range(1, 4):
        assert is_whole(orders.ours(epoch))
