"""Generators of a dataset draw other numbers in each task, whoever makes it."""

import random
from collections import deque
from functools import partial

import numpy as np
import pytest
import torch

from fastloader.engine._owned_generators import OwnedGenerators


class Holder:
    def __init__(self, rng):
        self.transforms = [{"rng": rng}]


KINDS = {
    "numpy": (np.random.default_rng, lambda rng: rng.random()),
    "philox": (
        lambda seed: np.random.Generator(np.random.Philox(seed)),
        lambda rng: rng.random(),
    ),
    "bits": (np.random.PCG64, lambda bits: np.random.Generator(bits).random()),
    "legacy": (np.random.RandomState, lambda rng: rng.rand()),
    "python": (random.Random, lambda rng: rng.random()),
    "torch": (
        lambda seed: torch.Generator().manual_seed(seed),
        lambda rng: torch.rand((), generator=rng).item(),
    ),
}

every_kind = pytest.mark.parametrize(("make", "draw"), KINDS.values(), ids=KINDS)


@every_kind
def test_draws_differ_between_tasks_and_repeat_for_the_same(make, draw):
    rng = make(0)
    owned = OwnedGenerators(Holder(rng))

    draws = []
    for task in ((1, 0, 0, 0), (1, 0, 0, 1), (1, 1, 0, 0), (1, 0, 0, 0)):
        owned.seed(*task)
        draws.append(draw(rng))

    assert len(set(draws)) == 3
    assert draws[0] == draws[3]


@every_kind
def test_the_users_seed_counts(make, draw):
    draws = set()
    for seed in (0, 1):
        rng = make(seed)
        OwnedGenerators(Holder(rng)).seed(1, 0, 0, 0)
        draws.add(draw(rng))

    assert len(draws) == 2


@every_kind
def test_what_the_user_seeds_in_a_worker_is_left_alone(make, draw):
    holder = Holder(make(0))
    owned = OwnedGenerators(holder)
    holder.transforms[0]["rng"] = make(77)

    owned.leave_changed(holder)
    owned.seed(1, 0, 0, 0)

    assert draw(holder.transforms[0]["rng"]) == draw(make(77))


def draw(rng):
    return rng.random()


class Slotted:
    __slots__ = ("rng",)

    def __init__(self, rng):
        self.rng = rng


GENERATOR = np.random.default_rng(3)


def draw_from_global(_):
    return GENERATOR.random()


@pytest.mark.parametrize(
    "holder_of",
    [
        Slotted,
        lambda rng: lambda: draw(rng),
        lambda rng: deque([{"rng": rng}]),
        lambda rng: partial(Holder(rng).__init__, rng),
        lambda rng: Holder(rng.random),
    ],
    ids=["slot", "closure", "deque", "partial method", "bound method"],
)
def test_generators_are_found_where_objects_keep_them(holder_of):
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state

    OwnedGenerators(holder_of(rng)).seed(1, 0, 0, 0)

    assert rng.bit_generator.state != before


def test_a_method_written_in_c_leads_to_its_generator():
    rng = random.Random(0)
    before = rng.getstate()

    OwnedGenerators(Holder(rng.random)).seed(1, 0, 0, 0)

    assert rng.getstate() != before


def test_a_generator_without_a_state_is_left_alone():
    held = Holder(random.SystemRandom())

    owned = OwnedGenerators(held)
    owned.leave_changed(held)
    owned.seed(1, 0, 0, 0)

    assert 0 <= held.transforms[0]["rng"].random() < 1


def test_a_generator_that_a_function_names_is_found():
    draws = []
    for task in (0, 1, 0):
        OwnedGenerators(draw_from_global).seed(1, 0, 0, task)
        draws.append(GENERATOR.random())

    assert draws[0] == draws[2] != draws[1]


def test_the_global_generators_are_nobodys():
    held = Holder([random.choice, np.random.mtrand._rand, torch.default_generator])

    before = random.getstate(), torch.get_rng_state().tolist()
    OwnedGenerators(held).seed(1, 0, 0, 0)

    assert (random.getstate(), torch.get_rng_state().tolist()) == before


class Shares:
    rng = np.random.RandomState()


class SharesByInheritance(Shares):
    pass


class Holds:
    def __init__(self):
        self.transforms = [SharesByInheritance()]


def test_what_the_objects_of_a_class_share_is_seeded_too():
    owned, draws = OwnedGenerators(Holds()), []

    for task in ((1, 0, 0, 0), (1, 0, 0, 1), (1, 0, 0, 0)):
        owned.seed(*task)
        draws.append(Shares.rng.rand())

    assert draws[0] != draws[1]
    assert draws[0] == draws[2]


def test_what_a_class_shares_draws_the_same_wherever_it_was_imported():
    draws = []
    for seed in (1, 2):
        Shares.rng.seed(seed)
        OwnedGenerators(Holds()).seed(1, 0, 0, 0)
        draws.append(Shares.rng.rand())

    assert draws[0] == draws[1]


def test_what_a_class_shares_is_left_alone_once_seeded():
    owned = OwnedGenerators(Holds())
    Shares.rng.seed(77)

    owned.leave_changed(Holds())
    owned.seed(1, 0, 0, 0)

    assert Shares.rng.rand() == np.random.RandomState(77).rand()
