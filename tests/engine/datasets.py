"""Datasets that workers can import."""

import os
import random
import resource
import signal
import subprocess
import time
from typing import Any, NamedTuple

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


class Survived(Images):
    """Kills its process at one sample, after it has started another one, which holds all that it had open."""

    def __init__(self, pid_path):
        super().__init__(32)
        self.pid_path = pid_path

    def __getitem__(self, index):
        if index == 9:
            survivor = subprocess.Popen(["sleep", "60"], close_fds=False)
            self.pid_path.write_text(str(survivor.pid))
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


class Hoarding(Images):
    """Opens files until there are no more."""

    def __getitem__(self, index):
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        descriptors = [os.dup(0) for _ in range(4)]
        assert descriptors
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


class DeadlyStream(Stream):
    """Kills its process before certain samples, once each.

    Those behind the last ones are the ends of the workers' shares.
    """

    def __init__(self, deadly, folder):
        super().__init__(20)
        self.deadly = deadly
        self.folder = folder

    def __iter__(self):
        info = get_worker_info()
        return self.share(info.id, info.num_workers)

    def share(self, start, step):
        for number in range(start, self.length, step):
            self.die_at(number)
            yield number
        self.die_at(self.length + start)

    def die_at(self, number):
        path = self.folder / str(number)
        if number in self.deadly and not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyIterator(DeadlyStream):
    """The same as an iterator of its own that can be told where to go on."""

    def __iter__(self):
        info = get_worker_info()
        self.next, self.step = info.id, info.num_workers
        return self

    def __next__(self):
        number = self.next
        self.die_at(number)
        if number >= self.length:
            raise StopIteration
        self.next += self.step
        return number

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class NoState(DeadlyIterator):
    """Cannot say where it is once it is at its end."""

    def state_dict(self):
        if self.next >= self.length:
            raise LookupError("no place")
        return super().state_dict()


class Live(Images):
    """Has a state that changes while workers hold copies."""

    offset = 0

    def live_state(self):
        return self.offset

    def load_live_state(self, state):
        self.offset = state

    def __getitem__(self, index):
        return index + self.offset


class Point(NamedTuple):
    """A sample, or a part of one, with names."""

    x: Any
    y: Any


TORCH_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
NUMPY_DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex128",
)


class Structures(Dataset):
    """Samples of any structure: decided by the thousands of the index, the values by the rest."""

    def __init__(self, ragged=False):
        self.ragged = ragged

    def __len__(self):
        return 1_000_000_000

    def __getitem__(self, index):
        structure = random.Random(index // 1000)
        values = np.random.default_rng(index)
        return self._part(structure, values, 3)

    def _part(self, structure, values, depth):
        kind = structure.choice(
            ["tensor", "array", "scalar", "dict", "list", "tuple", "point"]
            if depth
            else ["tensor", "array", "scalar"]
        )
        if kind == "tensor":
            return self._tensor(structure, values)
        if kind == "array":
            dtype = structure.choice(NUMPY_DTYPES)
            return np.asarray(values.integers(0, 200, self._shape(structure, values))).astype(
                dtype
            )
        if kind == "scalar":
            number = int(values.integers(1 << 40))
            scalars = [number, number / 7, str(number), bool(number % 2), np.float32(number)]
            return structure.choice([*scalars, None, b"b"] if self.ragged else scalars)
        parts = [self._part(structure, values, depth - 1) for _ in range(2)]
        if kind == "dict":
            return {"first": parts[0], "second": parts[1]}
        if kind == "point":
            return Point(*parts)
        return parts if kind == "list" else tuple(parts)

    def _tensor(self, structure, values):
        shape = self._shape(structure, values)
        tensor = torch.from_numpy(np.asarray(values.integers(0, 200, shape)))
        tensor = tensor.to(structure.choice(TORCH_DTYPES))
        is_turned = structure.random() < 0.3
        return tensor.transpose(0, -1) if is_turned and tensor.ndim else tensor

    def _shape(self, structure, values):
        shape = structure.choice([
            (),
            (0,),
            (1,),
            (7,),
            (2, 3),
            (2, 0, 3),
            (3, 40, 40),
            (130, 130),
        ])
        if self.ragged and shape:
            shape = (int(values.integers(4)), *shape[1:])
        return shape
