"""The quickest way is taken, and the others are not forgotten."""

import pytest

from fastloader.threads._quickest import TRIAL_SHARE, Quickest


def run(quickest, seconds, times):
    """Take the way that is chosen, so often; return how often each was taken."""
    taken = [0] * len(seconds)
    for _ in range(times):
        way = quickest.choose()
        taken[way] += 1
        quickest.note(way, seconds[way], amount=1)
    return taken


@pytest.mark.parametrize("seconds", [(1, 3, 2), (3, 2, 1), (2, 1, 3)])
def test_each_way_is_tried_and_the_quickest_is_kept(seconds):
    quickest = Quickest(3)

    first = run(quickest, seconds, 3)
    then = run(quickest, seconds, 20)

    assert first == [1, 1, 1]
    assert then[seconds.index(1)] == 20


def test_trials_of_a_slow_way_take_a_small_share_of_the_time():
    seconds = (1.0, 20.0)

    taken = run(Quickest(2), seconds, 100_000)

    share = taken[1] * seconds[1] / (taken[0] * seconds[0])
    assert 0.8 * TRIAL_SHARE < share < 1.2 * TRIAL_SHARE


def test_a_way_that_has_become_quicker_is_found():
    quickest = Quickest(2)
    run(quickest, (1, 2), 10)

    taken = run(quickest, (1, 0.5), 1000)

    assert taken[1] > 700


def test_a_way_that_has_become_slower_is_left():
    quickest = Quickest(2)
    run(quickest, (1, 2), 10)

    taken = run(quickest, (10, 2), 100)

    assert taken[1] > 90


def test_work_of_other_size_is_compared_by_amount():
    quickest = Quickest(2)
    quickest.note(0, 10.0, amount=100)
    quickest.note(1, 1.0, amount=1)

    assert quickest.choose() == 0
