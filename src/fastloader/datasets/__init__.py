"""Datasets and picklable wrappers around any dataset."""

import importlib
from typing import TYPE_CHECKING, Any

from fastloader.datasets._albumentations import AlbumentationsTransform
from fastloader.datasets._augment import Augment
from fastloader.datasets._mixed import MixedDataset
from fastloader.datasets._multiscale import MultiScale
from fastloader.datasets._sharded import ShardedIterable
from fastloader.datasets._standardize import Standardize, standardize
from fastloader.datasets._statistics import ChannelStatistics
from fastloader.datasets._wrapper import DatasetWrapper
from fastloader.tensors._buffers import empty_batch

if TYPE_CHECKING:
    from fastloader.datasets._ome_arrow import OMEArrowDataset

__all__ = [
    "AlbumentationsTransform",
    "Augment",
    "ChannelStatistics",
    "DatasetWrapper",
    "MixedDataset",
    "MultiScale",
    "OMEArrowDataset",
    "ShardedIterable",
    "Standardize",
    "empty_batch",
    "standardize",
]


def __getattr__(name: str) -> Any:
    # Workers of other datasets need no Arrow, which takes 0.2 s and 40 MB to import.
    if name == "OMEArrowDataset":
        return importlib.import_module("fastloader.datasets._ome_arrow").OMEArrowDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
