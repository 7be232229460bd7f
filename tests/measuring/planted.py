"""Loaders with one planted fault each, and sound ones; at module level for worker processes."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import torch
from torch.utils.data import IterableDataset, Sampler


def compute(seconds):
    """Keep a core busy for as much CPU time, whatever others do."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Computed:
    """Samples that cost CPU time."""

    def __init__(self, length, seconds, shape=(8,)):
        self.length = length
        self.seconds = seconds
        self.shape = shape

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        compute(self.seconds)
        return torch.zeros(self.shape), index


class Stored(Computed):
    """Samples that are waited for, as for a disk or a network."""

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.zeros(self.shape), index


class Shared(Computed):
    """Samples from storage that one worker at a time can read."""

    def __init__(self, length, seconds, lock):
        super().__init__(length, seconds)
        self.lock = lock

    def __getitem__(self, index):
        with self.lock:
            time.sleep(self.seconds)
        return torch.zeros(self.shape), index


class Uneven(Computed):
    """Samples of which a few take a hundred times as long."""

    SLOW = (3, 17, 40)

    def __getitem__(self, index):
        compute(100 * self.seconds if index in self.SLOW else self.seconds)
        return torch.zeros(self.shape), index


class Threaded(Computed):
    """Samples for which several threads compute at once, each its share, as OpenMP's do."""

    def __getitem__(self, index):
        numbers = np.ones(1 << 14)
        if not hasattr(self, "pool"):
            self.pool = ThreadPoolExecutor(3)
            self.all_there = Barrier(3)

        def compute_share(_):
            self.all_there.wait()
            for _ in range(100):
                np.sqrt(numbers)

        list(self.pool.map(compute_share, range(3)))
        return torch.zeros(self.shape), index


class Stream(IterableDataset):
    """Numbers one after the other."""

    def __init__(self, length, seconds=0.0):
        self.length = length
        self.seconds = seconds

    def __iter__(self):
        for number in range(self.length):
            compute(self.seconds)
            yield torch.tensor(number)


class SlowSampler(Sampler):
    """Says one index after the other, as if it asked somebody for each."""

    def __init__(self, length, seconds):
        self.length = length
        self.seconds = seconds

    def __len__(self):
        return self.length

    def __iter__(self):
        for number in range(self.length):
            time.sleep(self.seconds)
            yield number


def slow_transform(batch):
    """Change a batch for longer than it takes to make it."""
    compute(0.008)
    return batch


def slow_collate(samples):
    """Collate as nobody should."""
    compute(0.008)
    return torch.stack([image for image, _ in samples])
