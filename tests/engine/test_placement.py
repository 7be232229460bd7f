"""Where batches are to be made, from the times that they take here and there."""

import logging

import pytest

from fastloader.engine._placement import HOLD_SECONDS, START_SECONDS, Placement


class Clocked(Placement):
    """Computes as long as it is told."""

    def __init__(self):
        self.computed = 0.0
        super().__init__(lambda: self.computed)


def run(placement, seconds, *, here, workers, making=None):
    """Make batches for some time; return how many seconds of it were here."""
    passed = spent_here = 0.0
    while passed < seconds:
        is_here = placement.is_here
        took = here if is_here else workers
        placement.computed += took * is_here
        placement.note(took, took if making is None else making)
        passed += took
        spent_here += took * is_here
    return spent_here


@pytest.fixture
def placement():
    return Clocked()


def test_workers_come_when_they_could_have_started(placement):
    assert run(placement, START_SECONDS / 2, here=1e-3, workers=1e-3) > 0
    assert placement.is_here

    run(placement, START_SECONDS, here=1e-3, workers=1e-3)
    assert not placement.is_here


def test_time_in_which_others_had_the_cores_does_not_count(placement):
    for _ in range(1000):
        placement.note(1e-3, 1e-3)
    assert placement.is_here


def test_what_the_step_computes_does_not_count(placement):
    for _ in range(1000):
        placement.computed += 1e-3
        placement.note(1e-3, START_SECONDS / 2000)
    assert placement.is_here


def test_each_pass_has_that_time_anew(placement):
    for _ in range(10):
        placement.begin_pass()
        run(placement, START_SECONDS / 2, here=1e-3, workers=1e-3)
    assert placement.is_here


def test_it_stays_here_where_that_is_quicker_and_says_so(placement, caplog):
    with caplog.at_level(logging.INFO, "fastloader"):
        spent_here = run(placement, 10, here=2e-4, workers=2.6e-4)

    assert placement.is_settled_here
    assert spent_here > 8.5
    [told] = caplog.messages
    assert "0.2 ms from one to the next in this process" in told
    assert "0.26 with workers" in told


@pytest.mark.parametrize("here", [2.6e-4, 4e-4, 2e-3, 0.02, 0.5])
def test_workers_go_on_where_they_are_no_slower(placement, here):
    workers = 2.6e-4 if here < 1e-3 else here / 2
    spent_here = run(placement, HOLD_SECONDS, here=here, workers=workers)

    assert not placement.is_here
    assert not placement.is_settled_here
    assert spent_here < max(0.6, 6 * here)


def test_one_unlucky_stretch_decides_nothing(placement):
    took = {True: 2e-4, False: 2.6e-4}
    disturbed = iter([True])
    for _ in range(100_000):
        seconds = took[placement.is_here]
        if placement._rounds and placement.is_here and next(disturbed, False):
            seconds = 0.03
        placement.computed += seconds
        placement.note(seconds, seconds)

    assert placement.is_settled_here


def test_it_looks_again_after_a_while(placement):
    run(placement, 3, here=2e-4, workers=2.6e-4)
    assert placement.is_settled_here

    run(placement, HOLD_SECONDS + 3, here=4e-4, workers=2.6e-4, making=1e-4)

    assert not placement.is_here


def test_it_looks_again_at_once_where_batches_take_longer_than_they_did(placement):
    run(placement, 3, here=2e-4, workers=2.6e-4)
    assert placement.is_settled_here

    run(placement, 3, here=4e-4, workers=2.6e-4)

    assert not placement.is_here


def test_a_longer_step_of_the_loop_is_no_reason_to_look_again(placement):
    run(placement, 3, here=2e-4, workers=2.6e-4, making=1e-4)
    assert placement.is_settled_here

    run(placement, 3, here=4e-3, workers=2.6e-4, making=1e-4)

    assert placement.is_settled_here


def test_the_rest_of_a_pass_is_finished_here_if_it_is_short(placement):
    run(placement, 2 * START_SECONDS, here=1e-3, workers=1e-3)

    assert placement.may_finish_here(int(START_SECONDS / 1e-3) - 1)
    assert not placement.may_finish_here(int(START_SECONDS / 1e-3) + 2)


def test_a_pause_of_the_loop_is_not_the_start_of_workers(placement):
    run(placement, START_SECONDS, here=2e-4, workers=2.6e-4)
    placement.note(60.0, 0.01)
    run(placement, 3, here=2e-4, workers=2.6e-4)
    assert placement.is_settled_here

    run(placement, 3, here=6e-4, workers=2.6e-4)

    assert not placement.is_here


@pytest.mark.parametrize("making", [2e-4, 6e-4])
def test_workers_that_take_long_to_start_are_tried_again_the_later(placement, making):
    run(placement, START_SECONDS, here=2e-4, workers=2.6e-4)
    placement.note(3.0, 3.0)  # until the first worker has started
    run(placement, 3, here=2e-4, workers=2.6e-4)
    assert placement.is_settled_here

    run(placement, 55, here=6e-4, workers=2.6e-4, making=making)
    assert placement.is_settled_here

    run(placement, 10, here=6e-4, workers=2.6e-4, making=making)
    assert placement.is_settled_here is (making == 2e-4)
