"""Seeds: from one base seed to those of workers, tasks and samples, without collisions."""

import random
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from operator import index
from typing import Any

import numpy as np
import torch

from fastloader.machine._ranks import read_ranks

__all__ = [
    "DrawScope",
    "coming_global_seeds",
    "current_draw_scope",
    "derive_seed",
    "draw_scope",
    "global_seeds",
    "seed_everything",
    "seed_global_generators",
    "seed_worker",
    "set_global_seeds",
]

_PYTHON: Any = random.getstate.__self__  # type: ignore[attr-defined]  # a bound method
_seed_python = super(random.Random, _PYTHON).seed  # noqa: S311 - it is no secret
"""What `random.seed` does with a number, after it has asked, for as long again, whether it is something else."""

_NUMPY: Any = np.random.rand.__self__  # type: ignore[attr-defined]  # a bound method
"""What users draw from by NumPy's functions; `numpy.random.seed` takes twice as long as its own."""

_SEEDS = struct.Struct("<QQI")  # of torch, Python and NumPy


@dataclass(frozen=True, slots=True)
class DrawScope:
    """What a sample's random draws depend on, besides its index."""

    seed: int
    """Base seed of the loader, 64 bits; the same on every rank."""
    epoch: int
    """Epoch that the batch belongs to, from 0."""


class _Current(threading.local):
    scope: DrawScope | None = None


_current = _Current()


def current_draw_scope() -> DrawScope | None:
    """Return the scope of the batch that this thread is making, or None outside a loader."""
    return _current.scope


class draw_scope:  # noqa: N801 - used like a function
    """Make `scope` the current one in this thread while the block runs.

    A class, since a generator's context takes several times as long, and each batch needs one.

    Args:
        scope: That of a loader's batch, or None.
    """

    __slots__ = ("_previous", "_scope")

    def __init__(self, scope: DrawScope | None) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._previous = _current.scope
        _current.scope = self._scope

    def __exit__(self, *_error: object) -> None:
        _current.scope = self._previous


def derive_seed(*parts: int) -> int:
    """Mix non-negative integers into one 64-bit seed.

    Uses NumPy's `SeedSequence`, so seeds derived from neighbouring parts are unrelated.

    Args:
        *parts: Base seed first, then what tells this use from others (rank, worker, batch).
    """
    low, high = np.random.SeedSequence(parts).generate_state(2, np.uint32).tolist()
    return int(low | high << 32)


def global_seeds(*parts: int) -> tuple[int, int, int]:
    """Return seeds for the global generators of torch, Python and NumPy from the same parts.

    It is called for each batch, so it hashes by BLAKE2b (RFC 7693), in a tenth of the time that a
    `SeedSequence` takes, and gives NumPy one word: several take four times as long. The torch
    generator uses one word of its seed as well.

    Args:
        *parts: As for `derive_seed`.
    """
    return _seeds_by(blake2b(_as_text(*parts), digest_size=_SEEDS.size))


def coming_global_seeds(*parts: int, numbers: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return what `global_seeds` gives for the same parts and one more, for several of these.

    Args:
        *parts: All but the last.
        numbers: The last ones.
    """
    found, begun = [], blake2b(_as_text(*parts), digest_size=_SEEDS.size)
    for number in numbers:
        hashed = begun.copy()  # takes half of the time that hashing all again does
        hashed.update(b"%d " % number)
        found.append(_seeds_by(hashed))
    return found


def _as_text(*parts: int) -> bytes:
    return b"%d " * len(parts) % parts


def _seeds_by(hashed: blake2b) -> tuple[int, int, int]:
    torch_seed, python_seed, numpy_seed = _SEEDS.unpack(hashed.digest())
    # 63 bits: `torch.initial_seed()` must fit into a tensor of integers.
    return torch_seed >> 1, python_seed, numpy_seed


def seed_global_generators(*parts: int) -> None:
    """Seed the global generators of Python, NumPy and torch (CPU) from the same parts.

    Args:
        *parts: As for `derive_seed`.
    """
    set_global_seeds(*global_seeds(*parts))


def set_global_seeds(torch_seed: int, python_seed: int, numpy_seed: int) -> None:
    """Seed the global generators of torch (CPU), Python and NumPy.

    Args:
        torch_seed: From `global_seeds`, like the others.
        python_seed: 64 bits.
        numpy_seed: 32 bits.
    """
    torch.default_generator.manual_seed(torch_seed)
    _seed_python(python_seed)
    _PYTHON.gauss_next = None
    # Whoever has put another kind of generator there keeps it: it cannot be seeded like this.
    if isinstance(np.random.get_bit_generator(), np.random.MT19937):  # type: ignore[attr-defined]  # not in NumPy's stubs
        _NUMPY.seed(numpy_seed)


def seed_worker(worker_id: int) -> None:
    """Seed a worker by (base seed, rank, worker): a `worker_init_fn` for any `DataLoader`.

    `FastLoader` seeds its workers by itself. Give this to a stock `DataLoader`, whose workers
    otherwise draw the same numbers on every rank that starts from the same seed.

    Args:
        worker_id: Number of the worker, from 0.
    """
    info = torch.utils.data.get_worker_info()
    worker_seed = info.seed if info is not None else torch.initial_seed() + worker_id
    # The worker's seed already is base seed + worker: take the base out before mixing.
    base_seed = (worker_seed - worker_id) % 2**64
    seed_global_generators(base_seed, read_ranks().rank, worker_id)


def seed_everything(seed: int, *, deterministic: bool = False) -> torch.Generator:
    """Seed the global generators of Python, NumPy and torch on all devices.

    Args:
        seed: Any integer from 0 to 2**64 - 1.
        deterministic: Also ask torch for deterministic algorithms and turn off the search
            for the fastest convolution.

    Returns:
        A new generator seeded with `seed`, to give to a loader or `random_split`.

    Raises:
        TypeError: If `seed` is no integer.
        ValueError: If `seed` is outside its range.
    """
    seed = index(seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, but got {seed}.")
    torch.manual_seed(seed)  # all devices
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002
    if deterministic:
        torch.use_deterministic_algorithms(mode=True)
        torch.backends.cudnn.benchmark = False
    return torch.Generator().manual_seed(seed)
