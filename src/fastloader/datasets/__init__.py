"""Datasets and picklable wrappers around any dataset."""

from fastloader._buffers import empty_batch
from fastloader.datasets._albumentations import AlbumentationsTransform
from fastloader.datasets._augment import Augment
from fastloader.datasets._statistics import ChannelStatistics
from fastloader.datasets._wrapper import DatasetWrapper

__all__ = [
    "AlbumentationsTransform",
    "Augment",
    "ChannelStatistics",
    "DatasetWrapper",
    "empty_batch",
]
