"""Generators of a dataset draw other numbers in each task, whoever makes it."""

import random

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
