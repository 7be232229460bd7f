"""The sampler of a loader with a seed: torch's kind, in an order of seed and epoch alone."""

from collections.abc import Sized

from torch.utils.data import RandomSampler

from fastloader.sampling._shuffled import ShuffledSampler

__all__ = ["SeededSampler"]


class SeededSampler(ShuffledSampler, RandomSampler):
    """Every sample once an epoch, in an order that depends on seed and epoch alone.

    It is one of torch's samplers by type, because frameworks ask for that to find out whether a
    loader shuffles; and it carries the seed along when they make the loader anew.
    """

    def __init__(self, data_source: Sized, seed: int) -> None:
        RandomSampler.__init__(self, data_source)
        ShuffledSampler.__init__(self, data_source, seed)
