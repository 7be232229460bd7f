"""The seed of an epoch: torch's draw where torch's order is drawn, else without a trace."""

from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from typing import NamedTuple

import torch

from fastloader._torch_internals import draws_on_cpu_by_default
from fastloader.randomness._seeding import derive_seed

__all__ = ["PeekedSeed", "draw_seed", "draws_on_cpu", "order_seed", "peek_seed"]

_ORDER = 1
"""Tells the seed of the order from other seeds made of the same number."""


def order_seed(seed: int, epoch: int) -> int:
    """Return the seed of the order of an epoch.

    Args:
        seed: Of the loader or sampler.
        epoch: Number of the epoch, from 0.
    """
    return derive_seed(seed, _ORDER, epoch)


def draw_seed(generator: torch.Generator | None) -> int:
    """Draw the number that torch's loader draws at the start of each epoch.

    Args:
        generator: Where from; None takes torch's global generator.
    """
    device = torch.device("cpu") if generator is None else generator.device
    drawn = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
    return int(drawn.item())


class PeekedSeed(NamedTuple):
    """A seed that is derived when it is asked for, as that takes longer than to keep the state."""

    state: torch.Tensor
    """Of torch's global generator; uint8."""
    epoch: int
    """Number of the epoch, so that epochs differ while the state stays the same."""

    def derive(self) -> int:
        """Return the seed, 64 bits."""
        state, salt = self.state.numpy().tobytes(), self.epoch.to_bytes(16)
        return int.from_bytes(blake2b(state, digest_size=8, salt=salt).digest())


def peek_seed(epoch: int) -> PeekedSeed:
    """Take a seed from torch's global generator without moving it.

    Args:
        epoch: Number of the epoch.
    """
    return PeekedSeed(torch.default_generator.get_state(), epoch)


_AS_IT_IS = nullcontext()


def draws_on_cpu() -> AbstractContextManager[object]:
    """Make the CPU torch's default device while torch draws seeds: its generators are there."""
    if draws_on_cpu_by_default():
        return _AS_IT_IS
    return torch.device("cpu")
