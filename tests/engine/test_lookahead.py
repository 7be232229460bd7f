"""How many batches are asked for ahead, and how many at once."""

import pytest

from fastloader.engine._depth import BATCHES_BETWEEN_LOOKS, CALM_LOOKS, MOST_TIMES, Depth
from fastloader.engine._lookahead import DEEP_BYTES, DEEP_SHARE, Lookahead

TINY = (1e-4, 1e-4, 1000)
SLOW = (0.01, 0.01, 1000)


def after(batches, prefetch_factor=2, *, budget_bytes=1 << 40, may_deepen=True):
    lookahead = Lookahead(prefetch_factor, budget_bytes, Depth() if may_deepen else None)
    for batch in batches:
        lookahead.note_batch(*batch)
    return lookahead


def test_each_worker_has_its_prefetch_factor():
    assert after([]).limit(3, 1 << 20) == 6


def test_more_tiny_batches_are_made_ahead():
    assert after([TINY] * 8).limit(2, 1 << 20) == 16


@pytest.mark.parametrize(
    "batch",
    [(5e-3, 1e-4, 1000), (2e-3, 2e-3, 1000), (1e-4, 1e-4, 1 << 20)],
    ids=["waits", "computes", "large"],
)
def test_two_other_batches_end_that_and_one_does_not(batch):
    assert after([*[TINY] * 20, batch]).limit(2, 1 << 20) == 16
    assert after([*[TINY] * 20, batch, batch]).limit(2, 1 << 20) == 4


def test_a_number_that_was_chosen_stays():
    assert after([TINY] * 8, 3, may_deepen=False).limit(2, 1 << 20) == 6


def test_memory_bounds_tiny_batches_too():
    assert after([TINY] * 8, budget_bytes=5 << 20).limit(2, 1 << 20) == 5


@pytest.mark.parametrize(("num_under_way", "is_due"), [(16, False), (9, False), (8, True)])
def test_half_of_the_tiny_batches_are_asked_for_at_once(num_under_way, is_due):
    assert after([TINY] * 8).is_due(num_under_way, 16) is is_due


def test_others_are_asked_for_one_by_one():
    assert after([]).is_due(3, 4)
    assert not after([]).is_due(4, 4)


def note_slow(lookahead, idle_share, *, shallower_share=1.0, num_batches=BATCHES_BETWEEN_LOOKS):
    for _ in range(num_batches):
        lookahead.note_idle(idle_share * SLOW[0], shallower_share * SLOW[0])
        lookahead.note_batch(*SLOW)


def test_more_batches_are_made_ahead_as_long_as_workers_stand_idle_behind_a_slow_one():
    lookahead = after([])
    limits = []
    for _ in range(4):
        note_slow(lookahead, 0.2)
        limits.append(lookahead.limit(2, 1 << 20))

    assert limits == [8, 16, 16, 16]
    assert limits[-1] == MOST_TIMES * 4


def test_each_batch_counts_once():
    lookahead = after([])
    note_slow(lookahead, 0.2, num_batches=2 * BATCHES_BETWEEN_LOOKS - 1)

    assert lookahead.limit(2, 1 << 20) == 8


def test_no_more_are_made_ahead_where_workers_are_hardly_ever_idle():
    lookahead = after([])
    note_slow(lookahead, 0.01)
    assert lookahead.limit(2, 1 << 20) == 4


def test_a_number_that_was_chosen_stays_though_workers_stand_idle():
    lookahead = after([], may_deepen=False)
    note_slow(lookahead, 0.2)
    assert lookahead.limit(2, 1 << 20) == 4


@pytest.mark.parametrize(("affordable", "limit"), [(6, 6), (3, 4)])
def test_what_is_made_further_ahead_takes_a_part_of_the_memory(affordable, limit):
    lookahead = after([], budget_bytes=DEEP_SHARE * affordable << 20)
    note_slow(lookahead, 0.2)
    assert lookahead.limit(2, 1 << 20) == limit


@pytest.mark.parametrize(("slots_each", "limit"), [(1, 4), (3, 6), (16, 16)])
def test_large_batches_are_not_made_far_ahead_however_much_memory_there_is(slots_each, limit):
    lookahead = after([])
    for _ in range(2):
        note_slow(lookahead, 0.2)

    assert lookahead.limit(2, DEEP_BYTES // slots_each) == limit


def test_what_batches_in_new_memory_took_says_nothing():
    lookahead = after([])
    for _ in range(4):
        note_slow(lookahead, 0.9, num_batches=BATCHES_BETWEEN_LOOKS - 1)
        lookahead.note_idle(1.0, 1.0)
        lookahead.note_batch(*SLOW, in_new_memory=True)

    assert lookahead.limit(2, 1 << 20) == 4


def after_growth():
    lookahead = after([])
    for _ in range(2):
        note_slow(lookahead, 0.2)
    assert lookahead.limit(2, 1 << 20) == 16
    return lookahead


def note_calm(lookahead, num_looks=CALM_LOOKS):
    note_slow(
        lookahead, 0.0, shallower_share=0.0, num_batches=num_looks * BATCHES_BETWEEN_LOOKS
    )


def test_fewer_are_made_ahead_once_half_as_many_have_long_been_enough():
    lookahead = after_growth()
    note_calm(lookahead, CALM_LOOKS - 1)
    assert lookahead.limit(2, 1 << 20) == 16
    note_calm(lookahead, 1)
    assert lookahead.limit(2, 1 << 20) == 8


def test_as_many_stay_ahead_where_workers_would_be_idle_with_half_as_many():
    lookahead = after_growth()
    for _ in range(2 * CALM_LOOKS):
        note_slow(lookahead, 0.0, shallower_share=0.1)
    assert lookahead.limit(2, 1 << 20) == 16


def test_one_slow_batch_in_between_makes_the_calm_count_anew():
    lookahead = after_growth()
    note_calm(lookahead, CALM_LOOKS - 1)
    note_slow(lookahead, 0.0, shallower_share=0.1)
    note_calm(lookahead, CALM_LOOKS - 1)
    assert lookahead.limit(2, 1 << 20) == 16


def test_the_calm_has_to_last_twice_as_long_the_next_time():
    lookahead = after_growth()
    note_calm(lookahead)
    note_slow(lookahead, 0.2)
    note_calm(lookahead)
    assert lookahead.limit(2, 1 << 20) == 16
    note_calm(lookahead)
    assert lookahead.limit(2, 1 << 20) == 8
