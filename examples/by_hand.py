"""The same images the ordinary way: a dataset written by hand for a stock DataLoader."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset

__all__ = ["HandWrittenCells", "random_flips"]


class HandWrittenCells(Dataset[tuple[torch.Tensor, int]]):
    """Rows of an OME-Arrow table, turned into Python objects one by one.

    Args:
        path: OME-Arrow Parquet file with the columns ``image`` and ``label``.
        rows: Which rows of the file, in order.
        mean: Of each channel.
        std: Of each channel.
        augment: Changes one standardized image ``(C, H, W)``.
    """

    def __init__(
        self,
        path: Path,
        rows: Sequence[int],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        table = pq.read_table(path, columns=["image", "label"]).take(pa.array(rows))
        self.images = table["image"].combine_chunks()
        labels = table["label"].to_pylist()
        self.classes = sorted(set(labels))
        self.labels = [self.classes.index(label) for label in labels]
        self.mean = torch.tensor(mean).reshape(-1, 1, 1)
        self.std = torch.tensor(std).reshape(-1, 1, 1)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        record = self.images[index].as_py()
        size = record["pixels_meta"]
        pixels = np.empty((size["size_c"], size["size_y"], size["size_x"]), dtype=np.float32)
        for chunk in record["chunks"]:
            shape = chunk["shape_y"], chunk["shape_x"]
            y, x = chunk["y"], chunk["x"]
            pixels[chunk["c"], y : y + shape[0], x : x + shape[1]] = np.array(
                chunk["pixels"], dtype=np.float32
            ).reshape(shape)
        image = (torch.from_numpy(pixels) - self.mean) / self.std
        if self.augment is not None:
            image = self.augment(image)
        return image, self.labels[index]


def random_flips(image: torch.Tensor) -> torch.Tensor:
    """Flip an image ``(C, H, W)`` along each axis with probability one half."""
    if torch.rand(()) < 0.5:
        image = image.flip(-1)
    if torch.rand(()) < 0.5:
        image = image.flip(-2)
    return image
