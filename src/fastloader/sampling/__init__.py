"""The order in which samples are read: a pure function of seed and epoch, shared by ranks."""

from fastloader.sampling._class_balanced import ClassBalancedSampler
from fastloader.sampling._distributed import DistributedSampler
from fastloader.sampling._epoch_length import EpochLengthSampler
from fastloader.sampling._epoch_sampler import EpochSampler, Order
from fastloader.sampling._length_grouped import LengthGroupedSampler
from fastloader.sampling._shuffled import OrderedSampler, ShuffledSampler, SubsetSampler
from fastloader.sampling._weighted import WeightedSampler

__all__ = [
    "ClassBalancedSampler",
    "DistributedSampler",
    "EpochLengthSampler",
    "EpochSampler",
    "LengthGroupedSampler",
    "Order",
    "OrderedSampler",
    "ShuffledSampler",
    "SubsetSampler",
    "WeightedSampler",
]
