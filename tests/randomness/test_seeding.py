"""Seeds that never collide and never leak."""

import random

import numpy as np
import pytest
import torch

from fastloader.randomness._seeding import (
    DrawScope,
    current_draw_scope,
    derive_seed,
    draw_scope,
    seed_everything,
    seed_global_generators,
)


def test_seeds_of_neighbouring_parts_differ():
    seeds = {
        derive_seed(base, rank, worker)
        for base in range(4)
        for rank in range(4)
        for worker in range(4)
    }

    assert len(seeds) == 64


def test_a_draw_scope_ends_with_its_block():
    with draw_scope(DrawScope(seed=1, epoch=2)):
        assert current_draw_scope() == DrawScope(seed=1, epoch=2)

    assert current_draw_scope() is None


def test_the_seed_of_torchs_generator_fits_a_tensor():
    before = torch.get_rng_state()
    for part in range(20):
        seed_global_generators(part)
        torch.tensor(torch.initial_seed())
    torch.set_rng_state(before)


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_any_seed_of_64_bits_seeds_everything(seed):
    def drawn():
        generator = seed_everything(seed)
        return random.random(), np.random.rand(), torch.rand(1, generator=generator).item()

    assert drawn() == drawn()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_of_more_bits_is_refused(seed):
    with pytest.raises(ValueError, match="from 0 to"):
        seed_everything(seed)


def test_a_seed_that_is_no_integer_is_refused():
    with pytest.raises(TypeError, match="integer"):
        seed_everything("7")
