"""Random generators that a dataset or collate_fn owns: all copies would draw the same."""

import hashlib
import pickle
import random
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloader.inspection._attributes import walk_attributes
from fastloader.randomness._seeding import derive_seed

__all__ = ["OwnedGenerators"]

_KINDS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,  # noqa: S311
    torch.Generator,
)

# What module functions draw from; the isolation of batches seeds these.
_GLOBALS = (
    random.random.__self__,  # type: ignore[attr-defined]  # a bound method
    np.random.random.__self__,  # type: ignore[attr-defined]  # the same
    torch.default_generator,
)


class _Owned(NamedTuple):
    generator: Any
    state: int
    """Digest of its state when it was found."""
    origin: int
    """What tells it from others in seeds."""


class OwnedGenerators:
    """The generators in a worker's copy of a dataset, seeded anew for each task.

    Seeds are made of the generator's own first state, base seed, epoch, rank and batch. So the
    seed that the user gave it still counts, draws differ over workers and epochs, and they do
    not depend on which worker makes a batch. For a generator that is a class attribute (MONAI's
    random transforms have one) or a global variable the name stands for the first state: it was
    made when the module was imported, and that may have happened in each worker anew.

    Args:
        parts: This worker's copy of the dataset, and of what else it calls.
    """

    def __init__(self, parts: object) -> None:
        self._found: dict[str, _Owned] = {}
        for path, part, is_static in walk_attributes(parts, "loader"):
            if isinstance(part, random.SystemRandom):
                continue  # all of them draw from the system, which gives nothing twice
            if isinstance(part, _KINDS) and part not in _GLOBALS:
                state = _digest(part)
                origin = _hash(path.encode()) if is_static else state
                self._found[path] = _Owned(part, state, origin)

    def leave_changed(self, parts: object) -> None:
        """Leave those alone that somebody has seeded or replaced since.

        Args:
            parts: The same copies, after `worker_init_fn`.
        """
        now = OwnedGenerators(parts)._found  # noqa: SLF001
        self._found = {
            path: found
            for path, found in self._found.items()
            if path in now and now[path].state == found.state
        }

    def seed(self, *parts: int) -> None:
        """Seed all of them.

        Args:
            *parts: Base seed first, then what tells this task from others.
        """
        for generator, _, origin in self._found.values():
            _seed(generator, derive_seed(origin, *parts))


def _digest(generator: Any) -> int:
    state = generator.get_state() if isinstance(generator, torch.Generator) else generator
    data = state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)
    return _hash(data)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    if isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed >> 1)
    elif isinstance(generator, np.random.RandomState):
        generator.seed([seed & 0xFFFFFFFF, seed >> 32])
    else:
        generator.seed(seed)
