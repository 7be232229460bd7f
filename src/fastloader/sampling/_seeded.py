"""The sampler of a loader with a seed: torch's kind, in an order of seed and epoch alone."""

from collections.abc import Iterator, Sized
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import RandomSampler

from fastloader.sampling._base_seed import order_seed

__all__ = ["SeededSampler"]

_CHUNK = 8192


class SeededSampler(RandomSampler):
    """Every sample once an epoch, in an order that depends on seed and epoch alone.

    It is one of torch's samplers by type, because frameworks ask for that to find out whether a
    loader shuffles; and it carries the seed along when they make the loader anew.

    Args:
        data_source: The dataset.
        seed: Of the loader.
    """

    def __init__(self, data_source: Sized, seed: int) -> None:
        super().__init__(data_source)
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass.

        Args:
            epoch: Number of the epoch, from 0.
        """
        self.epoch = epoch

    def chunks(self) -> Iterator[npt.NDArray[np.int64]]:
        """Return the order in parts, as arrays."""
        generator = torch.Generator().manual_seed(order_seed(self.seed, self.epoch))
        order = torch.randperm(len(self), generator=generator, device="cpu").numpy()
        for start in range(0, len(order), _CHUNK):
            yield order[start : start + _CHUNK]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(chunk.tolist() for chunk in self.chunks())
