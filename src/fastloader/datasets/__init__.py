"""Datasets and picklable wrappers around any dataset."""

from fastloader._buffers import empty_batch
from fastloader.datasets._albumentations import AlbumentationsTransform
from fastloader.datasets._augment import Augment
from fastloader.datasets._multiscale import MultiScale
from fastloader.datasets._standardize import Standardize, standardize
from fastloader.datasets._statistics import ChannelStatistics
from fastloader.datasets._wrapper import DatasetWrapper

__all__ = [
    "AlbumentationsTransform",
    "Augment",
    "ChannelStatistics",
    "DatasetWrapper",
    "MultiScale",
    "Standardize",
    "empty_batch",
    "standardize",
]
