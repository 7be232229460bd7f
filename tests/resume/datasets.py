"""Datasets and samplers at top level, so that workers find them."""

import random

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


class Numbers(Dataset):
    """Sample i is i."""

    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


class Drawing(Numbers):
    """Adds a draw from the global generator to each number."""

    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(()).item()])


class Counted(Numbers):
    """Notes what is read, in this process."""

    def __init__(self, length=40):
        super().__init__(length)
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return index


class SlowFirst(Numbers):
    """The first sample takes a while."""

    def __getitem__(self, index):
        if index == 0:
            torch.randn(1500, 1500) @ torch.randn(1500, 1500)
            __import__("time").sleep(0.5)
        return index


class Epochs(Numbers):
    """A sample tells the epoch that the dataset was told."""

    def __init__(self, length=8):
        super().__init__(length)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.epoch


class PrivateEpochs(Epochs):
    """The same, but nobody can see the number."""

    def __init__(self, length=8):
        Numbers.__init__(self, length)
        self._now = 0

    def set_epoch(self, epoch):
        self._now = epoch

    def __getitem__(self, index):
        return self._now


class Stream(IterableDataset):
    """Each worker's share: numbers of its own, as many as asked for."""

    def __init__(self, lengths=(14, 9, 4)):
        self.lengths = lengths

    def share(self):
        info = get_worker_info()
        if info is None or info.num_workers == 1:
            return range(sum(self.lengths))
        start = sum(self.lengths[: info.id])
        return range(start, start + self.lengths[info.id])

    def __iter__(self):
        return iter(self.share())


class DrawingStream(Stream):
    """Adds a draw from the global generator to each number."""

    def __iter__(self):
        for number in self.share():
            yield torch.tensor([float(number), torch.rand(()).item()])


class StatefulStream(Stream):
    """Saves where it is, and in which epoch."""

    def __init__(self, lengths=(14, 9, 4)):
        super().__init__(lengths)
        self.position = 0
        self.epoch = 0
        self.num_read = 0
        self._resumed_at = None

    def __iter__(self):
        share = self.share()
        self.position = self._resumed_at or 0
        self._resumed_at = None
        while self.position < len(share):
            self.position += 1
            self.num_read += 1
            yield share[self.position - 1] + 1000 * self.epoch
        self.position = 0
        self.epoch += 1

    def state_dict(self):
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state):
        self._resumed_at = state["position"]
        self.epoch = state["epoch"]


class StatefulIterator:
    """Counts up, and saves where it is."""

    def __init__(self, share):
        self.share = share
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == len(self.share):
            raise StopIteration
        self.position += 1
        return self.share[self.position - 1]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class StreamOfStatefulIterators(Stream):
    """Only its iterators save where they are."""

    def __iter__(self):
        return StatefulIterator(self.share())


class Unpicklable(StatefulStream):
    """Its state cannot travel."""

    def state_dict(self):
        return {"generator": (number for number in range(3))}


class Countdown(Sampler):
    """A sampler with a state of its own, unlike any order that could be drawn again."""

    def __init__(self, length):
        self.length = length
        self.left = length
        self.last = random.SystemRandom().randrange(length)

    def __len__(self):
        return self.length

    def __iter__(self):
        while self.left:
            self.left -= 1
            yield (self.last + self.left) % self.length
        self.left = self.length

    def state_dict(self):
        return {"left": self.left, "last": self.last}

    def load_state_dict(self, state):
        self.left, self.last = state["left"], state["last"]


class Pairs(Sampler):
    """A batch sampler of a user: random pairs, drawn as they are asked for."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length // 2

    def __iter__(self):
        order = torch.randperm(self.length).tolist()
        for first in range(0, self.length, 2):
            yield order[first : first + 2]


class UnpicklableCountdown(Countdown):
    """Its state cannot be saved."""

    def state_dict(self):
        return {"left": (number for number in range(self.left))}
