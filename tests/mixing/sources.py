"""Datasets that tell what was read of them, in which pass and with which draws."""

import os

import torch
from torch.utils.data import Dataset, IterableDataset

from fastloader.randomness._seeding import current_draw_scope


class Numbers(Dataset):
    """Numbers from a first one on, which only a worker can make a batch of."""

    def __init__(self, first, length):
        self.first = first
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.tensor(self.first + index)


class Draws(Numbers):
    """Each sample with the seed and epoch that its random numbers come from."""

    def __getitem__(self, index):
        scope = current_draw_scope()
        return self.first + index, scope.seed % 2**31, scope.epoch


class Told(Numbers):
    """Each sample with the epoch that the dataset was told of."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.first + index, self.epoch


class Processes(Numbers):
    """The process that reads."""

    def __getitem__(self, index):
        return os.getpid()


class Stream(IterableDataset):
    """Numbers one after the other, of unknown length; knows where it is."""

    def __init__(self, first, length):
        self.first = first
        self.length = length
        self._next = 0
        self._first = 0

    def __iter__(self):
        start, self._first = self._first, 0
        for number in range(start, self.length):
            self._next = number + 1
            yield torch.tensor(self.first + number)
        self._next = 0

    def state_dict(self):
        return {"next": self._next}

    def load_state_dict(self, state):
        self._next = self._first = state["next"]


class Endless:
    """Batches without end or length."""

    def __iter__(self):
        number = 0
        while True:
            yield number
            number += 1
