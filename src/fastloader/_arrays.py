"""NumPy arrays as tensors over the same memory, wherever torch allows it."""

from typing import Any, cast

import numpy as np
import torch

__all__ = ["TORCH_DTYPES", "as_tensor"]

TORCH_DTYPES = {
    np.dtype(numpy_type): torch.from_numpy(np.empty(0, numpy_type)).dtype
    for numpy_type in (
        np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
        np.uint64, np.float16, np.float32, np.float64, np.complex64, np.complex128,
    )
}  # fmt: skip
"""The torch dtype of each NumPy dtype that has one."""


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
