"""A drop-in `torch.utils.data.DataLoader` that is fast without tuning."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastloader import errors
    from fastloader._loader import FastLoader
    from fastloader._presets import Loaders, create_loaders, evaluation_loader, train_loader
    from fastloader.datasets import OMEArrowDataset
    from fastloader.datasets._split import split
    from fastloader.measuring import benchmark, diagnose, find_batch_size
    from fastloader.mixing import MixedLoader
    from fastloader.randomness._seeding import seed_everything
    from fastloader.sampling import (
        ClassBalancedSampler,
        DistributedSampler,
        EpochLengthSampler,
        EpochSampler,
        LengthGroupedSampler,
        OrderedSampler,
        ShuffledSampler,
        SubsetSampler,
        WeightedSampler,
    )
    from fastloader.settings._settings import LoaderSettings
    from fastloader.tuning import tune
    from fastloader.writing import convert, write_images

__all__ = [
    "ClassBalancedSampler",
    "DistributedSampler",
    "EpochLengthSampler",
    "EpochSampler",
    "FastLoader",
    "LengthGroupedSampler",
    "LoaderSettings",
    "Loaders",
    "MixedLoader",
    "OMEArrowDataset",
    "OrderedSampler",
    "ShuffledSampler",
    "SubsetSampler",
    "WeightedSampler",
    "benchmark",
    "convert",
    "create_loaders",
    "diagnose",
    "errors",
    "evaluation_loader",
    "find_batch_size",
    "seed_everything",
    "split",
    "train_loader",
    "tune",
    "write_images",
]

_HOMES = {
    "FastLoader": "fastloader._loader",
    "LoaderSettings": "fastloader.settings._settings",
    "Loaders": "fastloader._presets",
    "MixedLoader": "fastloader.mixing",
    "benchmark": "fastloader.measuring",
    "convert": "fastloader.writing",
    "create_loaders": "fastloader._presets",
    "diagnose": "fastloader.measuring",
    "ClassBalancedSampler": "fastloader.sampling",
    "DistributedSampler": "fastloader.sampling",
    "EpochLengthSampler": "fastloader.sampling",
    "EpochSampler": "fastloader.sampling",
    "LengthGroupedSampler": "fastloader.sampling",
    "OrderedSampler": "fastloader.sampling",
    "ShuffledSampler": "fastloader.sampling",
    "SubsetSampler": "fastloader.sampling",
    "WeightedSampler": "fastloader.sampling",
    "evaluation_loader": "fastloader._presets",
    "find_batch_size": "fastloader.measuring",
    "OMEArrowDataset": "fastloader.datasets",
    "seed_everything": "fastloader.randomness._seeding",
    "split": "fastloader.datasets._split",
    "train_loader": "fastloader._presets",
    "tune": "fastloader.tuning",
    "write_images": "fastloader.writing",
}

_PACKAGES = (
    "datasets", "errors", "integrations", "measuring", "mixing", "sampling", "sources",
    "stats", "testing", "transforms", "tuning", "typing", "writing",
)  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


def __getattr__(name: str) -> Any:
    # Names are imported when they are first asked for: workers need only a few.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"fastloader.{name}")
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("fastloader")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Before any module of ours: code that runs at the end of torch's import, and puts FastLoader
# in DataLoader's place, would find that module half imported.
import torch  # noqa: E402, F401
