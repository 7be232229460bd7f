"""Datasets whose samples say what became of them."""

from itertools import chain

import torch
from torch.utils.data import Dataset, IterableDataset

NUM_SAMPLES = 24


class Rows(Dataset):
    """Each sample is its index."""

    def __init__(self, length=NUM_SAMPLES):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class BatchedRows(Rows):
    """Counts how it is read."""

    def __init__(self, length=NUM_SAMPLES):
        super().__init__(length)
        self.num_batches_read = 0
        self.num_samples_read = 0

    def __getitem__(self, index):
        self.num_samples_read += 1
        return super().__getitem__(index)

    def get_batch(self, indices):
        self.num_batches_read += 1
        return torch.tensor(indices, dtype=torch.float32)[:, None]


class Streamed(IterableDataset):
    """The same samples, one after the other."""

    def __iter__(self):
        return iter([torch.tensor([float(index)]) for index in range(NUM_SAMPLES)])


def indices_in(batches):
    """Return the indices of the samples in batches, as one list."""
    return [int(index) for batch in batches for index in torch.as_tensor(batch).flatten()]


def joined(batches):
    """Return lists of samples as one."""
    return list(chain.from_iterable(batches))
