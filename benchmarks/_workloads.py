"""Six kinds of work that loaders are asked to do, from samples in memory to slow storage."""

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

__all__ = ["WORKLOADS", "Workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A dataset and the size of its batches."""

    make: Callable[[int], Any]
    """Makes the dataset; the argument is the number of samples."""
    num_samples: int
    """Of an epoch that takes up to three seconds without workers."""
    batch_size: int
    about: str
    """What a sample costs."""
    most_workers: int = 8
    """The most that could be of use on a small machine."""
    waits: bool = False
    """Whether samples wait, so that more workers than cores are of use."""


class _Rows(Dataset[Any]):
    """A dataset of a length."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples


class CheapItems(_Rows):
    """Small samples that are next to nothing to make."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 8, 8), float(index)), index


class DecodedImages(_Rows):
    """Compressed images of 256 x 256 pixels, decoded and scaled: about 8 ms of computing.

    The decompressor leaves the interpreter free, as those of image formats do.
    """

    def __init__(self, num_samples: int) -> None:
        super().__init__(num_samples)
        rng = np.random.default_rng(0)
        noise = rng.poisson(20, (8, 256, 256, 3)).astype(np.uint8)
        self.files = [zlib.compress(image.tobytes(), 6) for image in noise]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = np.frombuffer(zlib.decompress(self.files[index % 8]), np.uint8)
        image = torch.from_numpy(pixels.reshape(256, 256, 3).astype(np.float32) / 255)
        return image.permute(2, 0, 1), index


class SlowStorage(_Rows):
    """Samples that wait 5 ms for a disk or a network."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.005)
        return torch.full((3, 32, 32), float(index)), index


class UnevenItems(_Rows):
    """Samples of 0.2 ms, one in sixteen of which takes 10 ms, in plain Python."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # Which are slow does not depend on where they stand in a batch.
        is_slow = (index * 2654435761 >> 8) % 16 == 0
        until = time.thread_time() + (0.01 if is_slow else 0.0002)
        while time.thread_time() < until:
            pass
        return torch.full((3, 16, 16), float(index)), index


class HugeItems(_Rows):
    """Samples of 3 MB that are copied from memory."""

    def __init__(self, num_samples: int) -> None:
        super().__init__(num_samples)
        self.images = torch.rand(8, 3, 512, 512, generator=torch.Generator().manual_seed(0))

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.images[index % 8] + 1


def _in_memory(num_samples: int) -> TensorDataset:
    images = torch.zeros(num_samples, 3, 32, 32, dtype=torch.uint8)
    return TensorDataset(images, torch.arange(num_samples))


WORKLOADS: Mapping[str, Workload] = {
    "in memory": Workload(_in_memory, 150_000, 256, "a row of a TensorDataset"),
    "cheap items": Workload(CheapItems, 40_000, 64, "some 5 us"),
    "decoding": Workload(DecodedImages, 128, 4, "8 ms of zlib and NumPy"),
    "slow storage": Workload(
        SlowStorage, 512, 8, "5 ms of waiting", most_workers=32, waits=True
    ),
    "uneven items": Workload(UnevenItems, 1_024, 16, "0.2 ms of Python, or 10 ms in one of 16"),
    "huge batches": Workload(HugeItems, 1_024, 16, "3 MB, batches of 50 MB"),
}
"""By name."""
