"""Draws of a dataset are seeded for each batch and leave no trace in the caller's generators."""

import random
import time

import numpy as np
import pytest
import torch

from fastloader.randomness._isolation import (
    _QUIET_BATCHES,
    _QUIET_SAMPLES,
    _SLOW_SECONDS,
    BatchIsolation,
    DrawingHabits,
)

DRAWS = {
    "torch": lambda: torch.rand(1).item(),
    "numpy": lambda: float(np.random.rand()),
    "numpy normal": lambda: float(np.random.randn()),
    "python": random.random,
    "python gauss": lambda: random.gauss(0, 1),
}
each_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


def seed_all():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


@pytest.fixture(autouse=True)
def _seeded():
    seed_all()


@each_draw
def test_draws_depend_on_the_parts_and_the_batch_alone(draw):
    def drawn(*parts):
        draw()
        isolation = BatchIsolation(*parts)
        found = []
        for number in (0, 1, 2):
            with isolation.around(number, 4):
                found += [draw(), draw()]
        return found

    first = drawn(5, 0)

    assert drawn(5, 0) == first
    assert len(set(first)) == 6
    assert not set(drawn(5, 1)) & set(first)


def test_draws_do_not_depend_on_which_batches_came_before():
    def drawn(numbers):
        isolation, found = BatchIsolation(5), {}
        for number in numbers:
            with isolation.around(number, 4):
                found[number] = [draw() for draw in DRAWS.values()]
        return found

    assert drawn(range(40)) == drawn([*range(30, 40), *range(29, -1, -1)])


@each_draw
@pytest.mark.parametrize("within", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_the_callers_draws_go_on_as_if_there_had_been_no_batches(draw, within, num_before):
    # An odd number of normal draws leaves the second of a pair for later.
    def draws(isolation):
        found = [draw() for _ in range(num_before)]
        for number in range(6):
            if isolation is not None:
                with isolation.around(number, 4):
                    if number != 2:
                        within()
            found.append(draw() if number % 2 else None)
        return found

    expected = draws(None)
    seed_all()

    assert draws(BatchIsolation(5)) == expected


def test_an_error_within_a_batch_leaves_no_trace_either():
    expected = [draw() for draw in DRAWS.values()]
    seed_all()

    def fail():
        with BatchIsolation(5).around(0, 1):
            for draw in DRAWS.values():
                draw()
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert [draw() for draw in DRAWS.values()] == expected


@each_draw
def test_a_dataset_that_draws_late_is_isolated_from_the_next_batches_on(draw):
    isolation = BatchIsolation(5)
    with isolation.around(0, _QUIET_SAMPLES):
        pass
    for number in range(1, 9):  # Python's generator is looked at now and then
        with isolation.around(number, 1):
            draw()
    found = []
    for _ in range(2):
        draw()  # the caller's own draws must not matter
        with isolation.around(9, 1):
            found.append(draw())

    assert found[0] == found[1]


def test_habits_are_known_in_the_next_epoch():
    habits = DrawingHabits()
    for number in range(_QUIET_BATCHES):
        with BatchIsolation(5, habits=habits).around(number, 1):
            pass

    assert BatchIsolation(6, habits=habits).leaves_alone(1)
    assert not BatchIsolation(6, habits=habits).leaves_alone(0)


def test_slow_batches_are_all_watched():
    isolation = BatchIsolation(5)
    with isolation.around(0, _QUIET_SAMPLES):
        pass
    assert isolation.leaves_alone(1)

    with isolation.around(8, 1):
        time.sleep(1.1 * _SLOW_SECONDS)

    assert not isolation.leaves_alone(9)


def test_a_quiet_dataset_is_left_alone():
    isolation = BatchIsolation(5)
    with isolation.around(0, _QUIET_SAMPLES):
        pass
    before = random.getstate()

    with isolation.around(1, 1):
        assert random.getstate() == before


def test_another_generator_of_numpys_is_left_alone():
    previous = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        with BatchIsolation(5).around(0, 1):
            np.random.rand()
    finally:
        np.random.set_bit_generator(previous)
