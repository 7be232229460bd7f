"""NumPy arrays as tensors over the same memory, wherever torch allows it."""

from typing import Any, cast

import numpy as np
import torch

__all__ = ["as_tensor"]


def as_tensor(image: Any) -> torch.Tensor:
    """Return a tensor or array as a tensor, without a copy where torch can share the memory.

    Args:
        image: Tensor or array; it must not be written to through the result.
    """
    if not isinstance(image, np.ndarray):
        return cast("torch.Tensor", image)
    # torch warns of read-only memory and refuses negative strides.
    sharable = image.flags.writeable and all(stride >= 0 for stride in image.strides)
    return torch.from_numpy(image if sharable else image.copy())
