"""Random generators that a dataset owns: copies in workers would all draw the same."""

import hashlib
import pickle
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloader._attributes import walk_attributes
from fastloader._seeding import derive_seed

__all__ = ["OwnedGenerators"]

_KINDS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)  # noqa: S311

_DEPTH = 8  # a transform of a transform of a list of transforms of a dataset, wrapped


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
    not depend on which worker makes a batch. For a generator that all objects of a class share
    (MONAI's random transforms have one) the name stands for the first state: it was made when
    the class was imported, and that may have happened in each worker anew.

    Args:
        dataset: This worker's copy.
    """

    def __init__(self, dataset: object) -> None:
        self._found: dict[str, _Owned] = {}
        for path, part in walk_attributes(dataset, "dataset", _DEPTH):
            if isinstance(part, _KINDS):
                state = _digest(part)
                self._found[path] = _Owned(part, state, state)
            for name, generator in _of_class(type(part)):
                origin = _hash(name.encode())
                self._found[name] = _Owned(generator, _digest(generator), origin)

    def leave_changed(self, dataset: object) -> None:
        """Leave those alone that somebody has seeded or replaced since.

        Args:
            dataset: The same copy, after `worker_init_fn`.
        """
        now = OwnedGenerators(dataset)._found  # noqa: SLF001
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


def _of_class(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the generators that are attributes of a class, by their full names."""
    for owner in cls.__mro__:
        for name, value in tuple(vars(owner).items()):
            if isinstance(value, _KINDS):
                yield f"{owner.__module__}.{owner.__qualname__}.{name}", value


def _digest(generator: Any) -> int:
    state = generator.get_state() if isinstance(generator, torch.Generator) else generator
    data = state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)
    return _hash(data)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed >> 1)
    elif isinstance(generator, np.random.RandomState):
        generator.seed([seed & 0xFFFFFFFF, seed >> 32])
    else:
        generator.seed(seed)
