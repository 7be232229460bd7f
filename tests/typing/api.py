"""The public API as users write it: type-checked, never run."""

from collections.abc import Sequence

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fastloader import FastLoader, LoaderSettings, create_loaders, seed_everything, split
from fastloader.datasets import (
    Augment,
    ChannelStatistics,
    DatasetWrapper,
    MixedDataset,
    MultiScale,
    OMEArrowDataset,
    Standardize,
    empty_batch,
)
from fastloader.errors import FastLoaderError, SettingsError
from fastloader.mixing import MixedBatchSampler, MixedLoader
from fastloader.sampling import DistributedSampler, EpochSampler, Order, WeightedSampler
from fastloader.transforms import RandomFlip, SpecAugment
from fastloader.typing import Batch, BatchedDataset, Sample

Pair = tuple[torch.Tensor, int]


class Squares:
    """What a user writes to be read in whole batches."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Sample:
        return torch.tensor(index**2)

    def get_batch(self, indices: Sequence[int]) -> Batch:
        batch = empty_batch((len(indices),), torch.int64)
        return torch.square(torch.tensor(indices), out=batch)


class Pairs(Dataset[Pair]):
    """What a user writes to be read one by one."""

    def __getitem__(self, index: int) -> Pair:
        return torch.zeros(1), index


class Invert(DatasetWrapper):
    """What a user writes around another dataset."""

    def transform_images(self, images: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
        return -images


class Backwards(EpochSampler):
    """What a user writes to read in another order."""

    def __len__(self) -> int:
        return 10

    def draw(self, epoch: int) -> Order:
        return lambda places: 9 - places


def shares_samples() -> int:
    """Share orders out over ranks."""
    share = DistributedSampler(range(10), 2, 0, sampler=Backwards(), uneven="keep")
    FastLoader(Pairs(), 4, sampler=share)
    FastLoader(
        Pairs(), 4, sampler=lambda dataset: WeightedSampler([1.0, 2.0]), distributed=True
    )
    return len(FastLoader(Pairs(), 4, shuffle=True, distributed="auto", samples_per_epoch=100))


def takes_a_batched_dataset(dataset: BatchedDataset) -> Batch:
    """Use a dataset through the protocol."""
    return dataset.get_batch([0, 1])


def makes_loaders() -> tuple[int, str, str]:
    """Make loaders in the usual ways."""
    generator: torch.Generator = seed_everything(3)
    typed: FastLoader[Pair] = FastLoader(Pairs(), 4, True)
    plain: DataLoader[Pair] = typed
    FastLoader(
        TensorDataset(torch.zeros(8, 1, 4, 4)),
        batch_size=4,
        shuffle=True,
        num_workers="auto",
        pin_memory=True,
        multiprocessing_context="spawn",
        generator=generator,
        prefetch_factor=2,
        persistent_workers="auto",
        transport="torch",
        device=torch.device("cpu"),
    )
    augmented = Augment(Invert(Pairs()), [RandomFlip(horizontal=1.0), SpecAugment()], seed=1)
    settings: LoaderSettings = FastLoader(augmented, seed=1).to("cuda").settings
    reason: str = settings.reasons["num_workers"]
    takes_a_batched_dataset(Squares())
    return len(plain), reason, typed.explain()


def reads_images() -> float:
    """Use the datasets of images together."""
    cells = OMEArrowDataset("cells.parquet", label_column="label", channels=["DAPI"])
    statistics = ChannelStatistics.of(cells, indices=[0, 1])
    standardized = Standardize(cells, statistics)
    loaders = create_loaders(
        standardized, batch_size=4, train_view=lambda part: Augment(part, RandomFlip())
    )
    train: FastLoader[Sample] = loaders.train
    parts = split(MultiScale(standardized, scales=[1.0, 0.5]), [0.5, 0.5], seed=1)
    return float(statistics.mean[0]) + len(train) + len(parts)


error: type[FastLoaderError] = SettingsError


def mixes() -> int:
    """Mix datasets and loaders in the usual ways."""
    sources = {"squares": Squares(), "numbers": range(4)}
    mixed = MixedLoader(sources, 2, strategy="weighted", weights={"squares": 3, "numbers": 1})
    mixed.set_weights({"numbers": 2})
    mixed.load_state_dict(mixed.state_dict())
    MixedLoader(
        {"a": FastLoader(Pairs()), "b": [1, 2]}, epoch_length="max", stop="CYCLE_FOREVER"
    )
    dataset = MixedDataset(sources, with_names=True)
    loader = FastLoader(
        dataset, batch_sampler=MixedBatchSampler(dataset, {"squares": 2, "numbers": 1})
    )
    for name, batch in mixed:
        assert name is not batch
    return len(mixed) + len(loader)
