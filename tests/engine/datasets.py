"""Datasets that workers can import."""

import os
import random
import signal
import time

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Images(Dataset):
    """Image `i` is full of `i`; the label is `i`."""

    def __init__(self, length=64, shape=(3, 32, 32), dtype=torch.float32):
        self.length = length
        self.shape = shape
        self.dtype = dtype

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full(self.shape, index, dtype=self.dtype), index


class Growing(Images):
    """Later images are larger than earlier ones; for batches of one sample."""

    def __getitem__(self, index):
        return torch.full((1000 * (index + 1) ** 2,), index, dtype=torch.float32)


class Draws(Images):
    """What the three global generators give."""

    def __getitem__(self, index):
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])


class Slow(Images):
    """Takes its time for one sample."""

    def __init__(self, length=8, slow_index=0, seconds=30.0):
        super().__init__(length)
        self.slow_index = slow_index
        self.seconds = seconds

    def __getitem__(self, index):
        if index == self.slow_index:
            time.sleep(self.seconds)
        return index


class Deadly(Images):
    """Kills its process at one sample, once if a file says so."""

    def __init__(self, length=32, deadly_index=9, once_path=None):
        super().__init__(length)
        self.deadly_index = deadly_index
        self.once_path = once_path

    def __getitem__(self, index):
        if index == self.deadly_index and not (self.once_path and self.once_path.exists()):
            if self.once_path:
                self.once_path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Faulty(Images):
    """Raises at some samples."""

    def __init__(self, length=16, faulty=(5,), error=None):
        super().__init__(length)
        self.faulty = set(faulty)
        self.error = KeyError("label") if error is None else error

    def __getitem__(self, index):
        if index in self.faulty:
            raise self.error
        return super().__getitem__(index)


class Unsendable(Images):
    """Samples that cannot be pickled."""

    def __getitem__(self, index):
        return lambda: index


class Stream(IterableDataset):
    """Counts; split over workers if asked to."""

    def __init__(self, length=20, splits=True):
        self.length = length
        self.splits = splits

    def __iter__(self):
        info = get_worker_info() if self.splits else None
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(torch.tensor(float(i)) for i in range(start, self.length, step))


class Live(Images):
    """Has a state that changes while workers hold copies."""

    offset = 0

    def live_state(self):
        return self.offset

    def load_live_state(self, state):
        self.offset = state

    def __getitem__(self, index):
        return index + self.offset
