"""A pool that begins with few workers: more come while the consumer waits, and batches stay right."""

import time

import pytest
from torch.utils.data import get_worker_info

from fastloader.engine._staffing import Staffing
from tests.engine.datasets import Images
from tests.engine.test_run import batches_of, in_fours, labels_of, open_pool, start

__all__ = ["open_pool"]

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("no_leaks")]


class Waits(Images):
    """Takes a while for each sample, and tells which worker of how many made it."""

    seconds = 0.002

    def __getitem__(self, index):
        time.sleep(self.seconds)
        info = get_worker_info()
        return index, info.id, info.num_workers


class Eager(Staffing):
    """Wants all the workers that there may be, whatever the clock says."""

    def wanted(self, num_workers, now, *, may_grow=True):
        return self._most if may_grow else num_workers


class Still(Staffing):
    """Keeps the workers that there are."""

    def wanted(self, num_workers, now, *, may_grow=True):
        return num_workers


class Thrifty(Staffing):
    """Has enough with one worker."""

    def wanted(self, num_workers, now, *, may_grow=True):
        return 1


@pytest.fixture
def eager_pool(open_pool):
    def make(**options):
        pool = open_pool(Waits(), num_workers=3, num_first=1, **options)
        pool.staffing = Eager(3, 0.0)
        return pool

    return make


def batches_until_all_work(run):
    """Return the batches up to one of the last of three workers: processes take their time."""
    batches, seen = [], set()
    while len(seen) < 3:
        batches.append(next(run))
        seen.update(batches[-1][1].tolist())
    run.close()
    return batches


def columns_of(batches):
    return [[value for column in batches for value in column[n].tolist()] for n in range(3)]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_are_taken_on_while_the_consumer_waits(eager_pool, method):
    pool = eager_pool(method=method)

    order, workers, counts = columns_of(batches_until_all_work(start(pool, in_fours(40_000))))

    assert order == list(range(len(order)))
    assert pool.num_live == 3
    assert set(workers) == {0, 1, 2}
    assert set(counts) == {3}  # what the dataset is told does not change on the way


def test_no_worker_is_taken_on_that_would_not_be_like_the_others(eager_pool):
    pool = eager_pool()

    batches_of(start(pool, in_fours(100), may_grow=lambda: False))

    assert pool.num_live == 1


def test_no_worker_is_taken_on_whose_batches_would_exceed_the_budget(eager_pool):
    pool = eager_pool()

    batches_of(start(pool, in_fours(100), budget_bytes=pool.arena.slot_bytes))

    assert pool.num_live == 1


def test_workers_leave_between_two_batches_without_a_trace(open_pool):
    pool = open_pool(Images(400), num_workers=3, num_first=3)
    pool.staffing = Still(3, 0.0)
    first = batches_of(start(pool, in_fours(200)))

    pool.resize(1)
    second = batches_of(start(pool, in_fours(200)))
    pool.resize(2)
    third = batches_of(start(pool, in_fours(200)))

    assert labels_of(first) == labels_of(second) == labels_of(third) == list(range(200))
    assert pool.num_live == 2


def test_workers_that_are_not_needed_leave_when_their_tasks_are_done(open_pool):
    pool = open_pool(Waits(), num_workers=3, num_first=3)
    pool.staffing = Thrifty(3, 0.0)

    order, _, _ = columns_of(batches_of(start(pool, in_fours(400))))

    assert order == list(range(400))
    assert pool.num_live == 1


def test_the_number_of_workers_is_kept_for_the_next_run(eager_pool):
    pool = eager_pool()
    batches_until_all_work(start(pool, in_fours(40_000)))

    _, workers, _ = columns_of(batches_of(start(pool, in_fours(80))))

    assert set(workers) == {0, 1, 2}
