"""The public API as users write it: type-checked, never run."""

from collections.abc import Sequence

import torch

from fastloader.errors import FastLoaderError, SettingsError
from fastloader.typing import Batch, BatchedDataset, Sample


class Squares:
    """What a user writes to be read in whole batches."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Sample:
        return torch.tensor(index**2)

    def get_batch(self, indices: Sequence[int]) -> Batch:
        return torch.tensor(list(indices)) ** 2


def takes_a_batched_dataset(dataset: BatchedDataset) -> Batch:
    """Use a dataset through the protocol."""
    return dataset.get_batch([0, 1])


error: type[FastLoaderError] = SettingsError
