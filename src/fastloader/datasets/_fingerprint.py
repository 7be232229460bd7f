"""A short name for the images of a dataset, to notice that a result belongs to others."""

import hashlib
from typing import Any

import numpy as np
import torch

from fastloader.datasets._fields import Field, find_image, get_field
from fastloader.tensors._arrays import as_tensor

__all__ = ["fingerprint"]

_NUM_SAMPLES = 16
_NUM_PIXELS = 1 << 12  # of each


def fingerprint(dataset: Any, field: Field = None) -> str:
    """Return a hash of the length of a dataset and of pixels of up to 16 of its images.

    Images and pixels are spread evenly. The hash changes when images are added, left out,
    reordered or all altered; a change to a single image can go unseen. A dataset that draws
    random numbers has another one each time.

    Args:
        dataset: Map-style dataset or sequence.
        field: Where the image is in a sample, as for `DatasetWrapper`.
    """
    size = len(dataset)
    digest = hashlib.sha256(f"{size}".encode())
    for index in np.linspace(0, size - 1, min(size, _NUM_SAMPLES)).astype(int).tolist():
        sample = dataset[index]
        image = as_tensor(get_field(sample, find_image(sample, field)))
        digest.update(f"{image.dtype} {tuple(image.shape)}".encode())
        # As bytes whatever the dtype: NumPy has no bfloat16.
        flat = image.detach().reshape(-1)
        flat = flat[:: max(1, flat.numel() // _NUM_PIXELS)].cpu().contiguous()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
