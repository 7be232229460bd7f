"""Random generators that a dataset owns: copies in workers would all draw the same."""

import hashlib
import pickle
import random
from typing import Any

import numpy as np
import torch

from fastloader._attributes import walk_attributes
from fastloader._seeding import derive_seed

__all__ = ["OwnedGenerators"]

_KINDS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)  # noqa: S311


class OwnedGenerators:
    """The generators in a worker's copy of a dataset, seeded anew for each task.

    Seeds are made of the generator's own first state, base seed, epoch, rank and batch. So the
    seed that the user gave it still counts, draws differ over workers and epochs, and they do
    not depend on which worker makes a batch.

    Args:
        dataset: This worker's copy.
    """

    def __init__(self, dataset: object) -> None:
        self._found = {
            path: (generator, _digest(generator))
            for path, generator in walk_attributes(dataset, "dataset")
            if isinstance(generator, _KINDS)
        }

    def leave_changed(self, dataset: object) -> None:
        """Leave those alone that somebody has seeded or replaced since.

        Args:
            dataset: The same copy, after `worker_init_fn`.
        """
        now = OwnedGenerators(dataset)._found  # noqa: SLF001
        self._found = {
            path: found
            for path, found in self._found.items()
            if path in now and now[path][1] == found[1]
        }

    def seed(self, *parts: int) -> None:
        """Seed all of them.

        Args:
            *parts: Base seed first, then what tells this task from others.
        """
        for generator, digest in self._found.values():
            _seed(generator, derive_seed(digest, *parts))


def _digest(generator: Any) -> int:
    state = generator.get_state() if isinstance(generator, torch.Generator) else generator
    data = state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)
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
