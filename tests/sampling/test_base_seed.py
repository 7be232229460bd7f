"""The seed of an epoch is torch's draw, or leaves no trace."""

import pytest
import torch
from torch.utils.data import DataLoader

from fastloader.sampling._base_seed import draw_seed, draws_on_cpu, peek_seed


@pytest.mark.parametrize("own", [False, True], ids=["global", "own generator"])
def test_a_drawn_seed_is_the_one_torchs_loader_draws(own):
    generator = torch.Generator() if own else None

    def start():
        torch.manual_seed(3)
        if generator is not None:
            generator.manual_seed(4)

    start()
    expected = iter(DataLoader([1], generator=generator))._base_seed
    start()

    assert draw_seed(generator) == expected


def test_peeking_leaves_the_global_state_alone_and_follows_it():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    seeds = [peek_seed(epoch).derive() for epoch in (0, 1, 0)]

    assert torch.equal(torch.get_rng_state(), before)
    assert seeds[0] == seeds[2] != seeds[1]
    peeked = peek_seed(0)
    torch.manual_seed(4)
    assert peeked.derive() == seeds[0] != peek_seed(0).derive()


def test_torch_draws_on_the_cpu_in_the_block():
    torch.set_default_device("meta")
    try:
        with draws_on_cpu():
            assert torch.empty(1).device.type == "cpu"
        assert torch.empty(1).device.type == "meta"
    finally:
        torch.set_default_device(None)
