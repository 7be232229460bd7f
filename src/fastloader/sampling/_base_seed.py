"""The seed of an epoch: torch's draw where torch's order is drawn, else without a trace."""

from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b

import torch

from fastloader._torch_internals import draws_on_cpu_by_default
from fastloader.randomness._seeding import derive_seed

__all__ = ["draw_seed", "draws_on_cpu", "order_seed", "peek_seed"]

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


def peek_seed(epoch: int) -> int:
    """Derive a seed from the state of torch's global generator without moving it.

    Args:
        epoch: Number of the epoch, so that epochs differ while the state stays the same.
    """
    state = torch.get_rng_state().numpy().tobytes()
    return int.from_bytes(blake2b(state, digest_size=8, salt=epoch.to_bytes(16)).digest())


def draws_on_cpu() -> AbstractContextManager[object]:
    """Make the CPU torch's default device while torch draws seeds: its generators are there."""
    if draws_on_cpu_by_default():
        return nullcontext()
    return torch.device("cpu")
