"""Draws of a dataset are seeded for each batch and leave no trace in the caller's generators."""

import random
import time

import numpy as np
import pytest
import torch

from fastloader.randomness import _global_generators
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


def draw_all():
    return [draw() for draw in DRAWS.values()]


def nothing():
    pass


def seed_all():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


@pytest.fixture(autouse=True)
def _seeded():
    seed_all()


@pytest.fixture(autouse=True, params=["as built", "without what is compiled"])
def _compiled(request, monkeypatch):
    if request.param != "as built":
        monkeypatch.setattr(_global_generators, "extension_module", lambda _name: None)


@each_draw
def test_draws_depend_on_the_parts_and_the_batch_alone(draw):
    def drawn(*parts):
        draw()
        isolation = BatchIsolation(*parts)
        found = []
        for number in (0, 1, 2):
            found += isolation.isolated(lambda: [draw(), draw()], number, 4)
        return found

    first = drawn(5, 0)

    assert drawn(5, 0) == first
    assert len(set(first)) == 6
    assert not set(drawn(5, 1)) & set(first)


def test_draws_do_not_depend_on_which_batches_came_before():
    def drawn(numbers):
        isolation, found = BatchIsolation(5), {}
        for number in numbers:
            found[number] = isolation.isolated(draw_all, number, 4)
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
                isolation.isolated(nothing if number == 2 else within, number, 4)
            found.append(draw() if number % 2 else None)
        return found

    expected = draws(None)
    seed_all()

    assert draws(BatchIsolation(5)) == expected


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", ["prepare", "_save", "_seed"])
def test_what_interrupts_the_seeding_leaves_no_trace(step, is_before, monkeypatch):
    isolation, expected = BatchIsolation(5), draw_all()
    isolation.isolated(draw_all, 0, 4)
    whole = getattr(isolation._generators, step)

    def interrupted(*args):
        monkeypatch.undo()
        if not is_before:
            whole(*args)
        raise KeyboardInterrupt

    seed_all()  # so that states have to be saved again
    monkeypatch.setattr(isolation._generators, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        isolation.isolated(draw_all, 8, 4)

    assert draw_all() == expected


def test_an_error_within_a_batch_leaves_no_trace_either():
    expected = draw_all()
    seed_all()

    def fail():
        draw_all()
        raise KeyError

    with pytest.raises(KeyError):
        BatchIsolation(5).isolated(fail, 0, 1)

    assert draw_all() == expected


@each_draw
def test_a_dataset_that_draws_late_is_isolated_from_the_next_batches_on(draw):
    isolation = BatchIsolation(5)
    isolation.isolated(nothing, 0, _QUIET_SAMPLES)
    for number in range(1, 9):  # Python's generator is looked at now and then
        isolation.isolated(draw, number, 1)
    found = []
    for _ in range(2):
        draw()  # the caller's own draws must not matter
        found.append(isolation.isolated(draw, 9, 1))

    assert found[0] == found[1]


def test_habits_are_known_in_the_next_epoch():
    habits = DrawingHabits()
    for number in range(_QUIET_BATCHES):
        BatchIsolation(5, habits=habits).isolated(nothing, number, 1)

    assert BatchIsolation(6, habits=habits).leaves_alone(1)
    assert not BatchIsolation(6, habits=habits).leaves_alone(0)


def test_slow_batches_are_all_watched():
    isolation = BatchIsolation(5)
    isolation.isolated(nothing, 0, _QUIET_SAMPLES)
    assert isolation.leaves_alone(1)

    isolation.isolated(lambda: time.sleep(1.1 * _SLOW_SECONDS), 8, 1)

    assert not isolation.leaves_alone(9)


def test_a_quiet_dataset_is_left_alone():
    isolation = BatchIsolation(5)
    isolation.isolated(nothing, 0, _QUIET_SAMPLES)
    before = random.getstate()

    assert isolation.isolated(random.getstate, 1, 1) == before


def test_another_generator_of_numpys_is_left_alone():
    previous = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        BatchIsolation(5).isolated(np.random.rand, 0, 1)
    finally:
        np.random.set_bit_generator(previous)
