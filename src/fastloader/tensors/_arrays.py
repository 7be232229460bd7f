"""NumPy arrays as tensors over the same memory, wherever torch allows it."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["TORCH_DTYPES", "as_tensor", "sharable_array", "with_sharable_arrays"]

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
    return torch.from_numpy(sharable_array(image))


def sharable_array(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array whose memory torch takes without a word, a copy where that must be.

    torch warns of read-only memory, and refuses negative strides and foreign byte orders.
    """
    ascends = all(stride >= 0 for stride in array.strides)
    if array.flags.writeable and ascends and array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="), order="C")


def with_sharable_arrays(sample: Any) -> Any:
    """Return a sample with `sharable_array` done to its arrays, itself where none needs it.

    Args:
        sample: Arrays in plain dictionaries, lists and (named) tuples; all else is left alone.
    """
    if isinstance(sample, np.ndarray):
        return sharable_array(sample)
    if type(sample) is dict:
        changed = {name: with_sharable_arrays(part) for name, part in sample.items()}
        is_same = all(changed[name] is part for name, part in sample.items())
        return sample if is_same else changed
    if type(sample) is list or isinstance(sample, tuple):
        parts = [with_sharable_arrays(part) for part in sample]
        if all(new is part for new, part in zip(parts, sample, strict=True)):
            return sample
        make = getattr(type(sample), "_make", type(sample))
        return make(parts)
    return sample
