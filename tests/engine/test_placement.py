"""Where batches are to be made, from the times that they take here and there."""

import logging

import pytest

from fastloader.engine._placement import HOLD_SECONDS, START_SECONDS, Place, Placement


class Clocked(Placement):
    """Computes as long as it is told."""

    def __init__(self, num_cpus=4):
        self.computed = self.used = 0.0
        super().__init__(num_cpus, lambda: self.computed, lambda: self.used)


def run(placement, seconds, *, here, workers, making=None, ahead=None, num_threads=1):
    """Make batches for some time; return how many seconds of it were here."""
    took_at = {Place.HERE: here, Place.AHEAD: ahead, Place.WORKERS: workers}
    passed = spent_here = 0.0
    while passed < seconds:
        is_here, took = is_made_here(placement), took_at[placement.place]
        placement.computed += took * is_here
        placement.used += took * num_threads
        step = 0.0 if making is None else here - making
        placement.note(took, max(took - step, 0.0))
        passed += took
        spent_here += took * is_here
    return spent_here


def is_made_here(placement):
    return placement.place is Place.HERE


@pytest.fixture
def placement():
    return Clocked()


def test_workers_come_when_they_could_have_started(placement):
    assert run(placement, START_SECONDS / 2, here=1e-3, workers=1e-3) > 0
    assert is_made_here(placement)

    run(placement, START_SECONDS, here=1e-3, workers=1e-3)
    assert not is_made_here(placement)


def test_no_workers_are_needed_where_the_step_takes_nearly_all_the_time(placement):
    run(placement, 20 * START_SECONDS, here=1e-2, making=1e-3, workers=1e-2)

    assert is_made_here(placement)
    assert placement.needs_no_workers


def test_time_in_which_others_had_the_cores_does_not_count(placement):
    for _ in range(1000):
        placement.note(1e-3, 1e-3)
    assert is_made_here(placement)


def test_what_the_step_computes_does_not_count(placement):
    for _ in range(1000):
        placement.computed += 1e-3
        placement.note(1e-3, START_SECONDS / 2000)
    assert is_made_here(placement)


def test_each_pass_has_that_time_anew(placement):
    for _ in range(10):
        placement.begin_pass([Place.WORKERS], 2)
        run(placement, START_SECONDS / 2, here=1e-3, workers=1e-3)
    assert is_made_here(placement)


def test_it_stays_here_where_that_is_quicker_and_says_so(placement, caplog):
    with caplog.at_level(logging.INFO, "fastloader"):
        spent_here = run(placement, 10, here=2e-3, workers=2.6e-3)

    assert placement.needs_no_workers
    assert spent_here > 8.5
    [told] = caplog.messages
    assert "2 ms where they are made in this process" in told
    assert "2.6 ms by workers" in told


@pytest.mark.parametrize("here", [2.6e-3, 4e-3, 0.02, 0.5])
def test_workers_go_on_where_they_are_no_slower(placement, here):
    workers = 2.6e-3 if here < 0.01 else here / 2
    spent_here = run(placement, HOLD_SECONDS, here=here, workers=workers)

    assert not is_made_here(placement)
    assert not placement.needs_no_workers
    assert spent_here < max(0.6, 6 * here)


def test_one_unlucky_stretch_decides_nothing(placement):
    took = {True: 2e-3, False: 2.6e-3}
    disturbed = iter([True])
    for _ in range(10_000):
        is_here = is_made_here(placement)
        seconds = took[is_here]
        if placement._duel and placement._duel._rounds and is_here and next(disturbed, False):
            seconds = 0.03
        placement.computed += seconds
        placement.note(seconds, seconds)

    assert placement.needs_no_workers


def test_it_looks_again_after_a_while(placement):
    run(placement, 3, here=2e-3, workers=2.6e-3)
    assert placement.needs_no_workers

    run(placement, HOLD_SECONDS + 3, here=4e-3, workers=2.6e-3, making=1e-3)

    assert not is_made_here(placement)


def test_it_looks_again_soon_where_batches_take_longer_than_they_did(placement):
    run(placement, 3, here=2e-3, workers=2.6e-3)
    assert placement.needs_no_workers

    run(placement, 10, here=4e-3, workers=2.6e-3)

    assert not is_made_here(placement)


def test_a_longer_step_of_the_loop_is_no_reason_to_look_again(placement):
    run(placement, 3, here=2e-3, workers=2.6e-3, making=1e-3)
    assert placement.needs_no_workers

    run(placement, 3, here=4e-2, workers=2.6e-3, making=1e-3)

    assert placement.needs_no_workers


def test_the_rest_of_a_pass_is_finished_here_if_it_is_short(placement):
    run(placement, 2 * START_SECONDS, here=1e-3, workers=1e-3)

    assert placement.may_finish_here(int(START_SECONDS / 1e-3) - 1)
    assert not placement.may_finish_here(int(START_SECONDS / 1e-3) + 2)


def test_a_pause_of_the_loop_is_not_the_start_of_workers(placement):
    run(placement, START_SECONDS, here=2e-3, workers=2.6e-3)
    placement.note(60.0, 0.01)
    run(placement, 3, here=2e-3, workers=2.6e-3)
    assert placement.needs_no_workers

    run(placement, 10, here=6e-3, workers=2.6e-3)

    assert not is_made_here(placement)


@pytest.mark.parametrize("making", [2e-3, 6e-3])
def test_workers_that_take_long_to_start_are_tried_again_the_later(placement, making):
    run(placement, START_SECONDS, here=2e-3, workers=2.6e-3)
    placement.note(3.0, 3.0)  # until the first worker has started
    run(placement, 3, here=2e-3, workers=2.6e-3)
    assert placement.needs_no_workers

    run(placement, 40, here=6e-3, workers=2.6e-3, making=making)
    assert placement.needs_no_workers

    run(placement, 15, here=6e-3, workers=2.6e-3, making=making)
    assert placement.needs_no_workers is (making == 2e-3)


@pytest.fixture
def held():
    """Decides for a dataset whose batches may be made anywhere."""
    placement = Clocked()
    placement.begin_pass([Place.AHEAD, Place.WORKERS], 4)
    return placement


@pytest.mark.parametrize(
    ("here", "making", "ahead", "workers", "place"),
    [
        (3e-3, 1e-3, 2.1e-3, 2.2e-3, Place.AHEAD),
        (3e-3, 1e-3, 2.9e-3, 2.2e-3, Place.WORKERS),
        (3e-3, 1e-3, 3.2e-3, 3.1e-3, Place.HERE),
        (9e-3, 8e-3, 8.1e-3, 2.5e-3, Place.WORKERS),
        (9e-3, 8e-3, 8.1e-3, 9.0e-3, Place.AHEAD),
        (9e-3, 8e-3, 9.1e-3, 3.0e-3, Place.WORKERS),
        (0.5, 0.2, 0.31, 0.33, Place.AHEAD),
        (7e-4, 4.5e-4, 6.9e-4, 5e-4, Place.WORKERS),
    ],
)
def test_batches_are_made_where_that_is_the_quickest(held, here, making, ahead, workers, place):
    run(held, 12 + 60 * here, here=here, workers=workers, making=making, ahead=ahead)

    assert held.place is place


@pytest.mark.parametrize(
    ("here", "making"), [(2e-5, 2e-5), (1e-4, 1e-4), (1e-2, 1e-4), (0.1, 2e-3)]
)
def test_no_other_place_is_tried_where_there_is_nothing_to_gain(held, here, making):
    seconds = min(40.0, 2e4 * here)
    spent_here = run(held, seconds, here=here, workers=None, making=making)

    assert spent_here >= seconds


def test_small_batches_are_made_here_as_to_hand_them_over_costs_what_it_saves(held):
    spent_here = run(held, 10, here=2.4e-4, workers=None, making=2.2e-4)

    assert spent_here >= 10


def test_cold_batches_are_no_reason_to_try_another_place(held):
    run(held, START_SECONDS, here=2.5e-3, workers=None, making=2.3e-3)
    spent_here = run(held, 10, here=2.4e-4, workers=None, making=2.2e-4)

    assert spent_here >= 10


def test_workers_are_not_tried_where_a_thread_gains_all_there_is_to_gain(held):
    run(held, 30, here=3e-3, workers=None, making=1e-3, ahead=2.05e-3)

    assert held.place is Place.AHEAD


def test_short_passes_of_batches_that_may_be_made_ahead_are_taken_together(held):
    for _ in range(100):
        held.begin_pass([Place.AHEAD, Place.WORKERS], 4)
        run(held, START_SECONDS / 2, here=3e-3, workers=3e-3, making=1e-3, ahead=2e-3)

    assert held.place is Place.AHEAD


def test_it_looks_again_whether_a_thread_is_still_the_quickest(held):
    run(held, 5, here=3e-3, workers=2e-3, making=1e-3, ahead=2e-3)
    assert held.place is Place.AHEAD

    run(held, HOLD_SECONDS + 3, here=3e-3, workers=5e-3, making=1e-3, ahead=4e-3)

    assert held.place is Place.HERE


def test_a_place_that_is_no_more_is_left(held):
    run(held, 5, here=3e-3, workers=2e-3, making=1e-3, ahead=2.9e-3)
    assert held.place is Place.WORKERS

    held.begin_pass([Place.AHEAD], 0)
    run(held, 5, here=3e-3, workers=None, making=1e-3, ahead=2.9e-3)

    assert held.place is Place.AHEAD


def test_who_is_to_stay_here_looks_no_more(held):
    run(held, 5, here=3e-3, workers=2e-3, making=1e-3, ahead=2e-3)

    held.stay_here()

    assert run(held, 100, here=3e-3, workers=None, making=1e-3) >= 100


def test_only_some_of_the_tiniest_batches_are_looked_at(held):
    held.note(2e-5, 1e-5)
    assert held.num_passed_over > 0

    held.note(1e-3, 1e-5)
    assert held.num_passed_over == 0


def test_batches_that_were_passed_over_count(held):
    while held.place is Place.HERE and not held.needs_no_workers:
        held.computed += 8e-4
        held.note(2e-3, 1e-4, 8)

    assert held.may_finish_here(180)
    assert not held.may_finish_here(220)


def test_workers_that_may_not_start_are_left_out(held):
    run(held, 5, here=3e-3, workers=2e-3, making=1e-3, ahead=2.9e-3)
    assert held.place is Place.WORKERS

    held.leave_out(Place.WORKERS)
    run(held, 5, here=3e-3, workers=None, making=1e-3, ahead=2.5e-3)
    assert held.place is Place.AHEAD

    held.begin_pass([Place.AHEAD, Place.WORKERS], 4)
    run(held, 2 * HOLD_SECONDS + 5, here=3e-3, workers=2e-3, making=1e-3, ahead=2.9e-3)
    assert held.place is Place.WORKERS


def test_one_slow_stretch_is_no_reason_to_take_workers(held):
    run(held, 3 * START_SECONDS, here=3e-3, workers=2e-3, making=3e-3, ahead=3e-3)
    while (
        held._phase is not Placement._hold
    ):  # what came first was made while others had the cores
        run(held, 0.1, here=1e-3, workers=1.1e-3, making=1e-3, ahead=1.1e-3)

    assert held.place is Place.HERE


def test_what_keeps_every_cpu_busy_already_is_tried_nowhere_else():
    placement = Clocked(num_cpus=2)
    placement.begin_pass([Place.AHEAD, Place.WORKERS], 2)

    for _ in range(50):
        placement.begin_pass([Place.AHEAD, Place.WORKERS], 2)
        run(placement, 0.3, here=8e-3, workers=None, making=6e-3, num_threads=2)

    assert placement.place is Place.HERE


def test_what_is_computed_between_passes_does_not_count(held):
    for _ in range(300):
        held.begin_pass([Place.AHEAD, Place.WORKERS], 4)
        run(held, START_SECONDS, here=3e-3, workers=3e-3, making=1e-3, ahead=2e-3)
        held.used += 10.0

    assert held.place is Place.AHEAD


def test_no_trial_begins_before_as_much_is_lost_as_it_costs(held):
    lost_until_trial = 0.0
    while held.place is Place.HERE:
        run(held, 3e-3, here=3e-3, workers=None, making=1e-3)
        lost_until_trial += 3e-3 - 2.1e-3

    assert lost_until_trial >= 0.1


def test_a_trial_ends_once_it_has_cost_too_much(held, caplog):
    with caplog.at_level(logging.INFO, "fastloader"):
        spent_here = run(held, 10, here=9e-3, making=8e-3, ahead=8.9e-3, workers=0.2)

    assert spent_here > 8
    assert any("by workers took" in message for message in caplog.messages)


def test_trials_in_vain_become_rare(held):
    spent_here = run(held, 100, here=9e-3, making=6e-3, ahead=0.03, workers=0.04)

    assert spent_here > 93
