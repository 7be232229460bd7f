"""From a small pickle and a slot to a batch: tensors and arrays over the slot's memory."""

import pickle
import threading
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.tensors._arrays import TORCH_DTYPES
from fastloader.typing import Batch

__all__ = [
    "DTYPE_CODES",
    "array_at",
    "empty_tensor",
    "generator_from",
    "storage_at",
    "strided_tensor_at",
    "tensor_at",
    "tensor_over",
    "unpack",
]

DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_NUMPY_DTYPES = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}


def unpack(packed: bytes, buffer: Any) -> Batch:
    """Make a batch whose tensors and arrays lie in `buffer`, without a copy.

    Args:
        packed: From `pack`.
        buffer: The slot, as a writable buffer that lives as long as someone refers to it.
    """
    _unpacking.buffer = buffer
    try:
        return pickle.loads(packed)
    finally:
        _unpacking.buffer = None


def tensor_over(
    buffer: Any, offset_bytes: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Return a contiguous tensor over a part of a writable buffer, which it keeps alive.

    Args:
        buffer: The memory.
        offset_bytes: Of the first element.
        dtype: Of the elements.
        shape: Sizes, none of them 0.
    """
    numpy_dtype = _NUMPY_DTYPES.get(dtype)
    if numpy_dtype is not None:  # in half the time
        return torch.from_numpy(np.ndarray(shape, numpy_dtype, buffer, offset_bytes))
    flat = torch.frombuffer(buffer, dtype=dtype, count=prod(shape), offset=offset_bytes)
    return flat.view(shape)


class _Unpacking(threading.local):
    buffer: Any = None


_unpacking = _Unpacking()


def tensor_at(offset: int, code: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a contiguous tensor of the batch that is unpacked, as all below do.

    Args:
        offset: Of its first byte in the slot.
        code: Of its dtype, in `DTYPE_CODES`.
        shape: Sizes, none of them 0.
    """
    return tensor_over(_unpacking.buffer, offset, DTYPES[code], shape)


def strided_tensor_at(
    offset: int,
    code: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    """Return a tensor of any strides, or one that wants gradients."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    dtype = DTYPES[code]
    flat = torch.frombuffer(_unpacking.buffer, dtype=dtype, count=extent, offset=offset)
    return flat.as_strided(shape, strides).requires_grad_(requires_grad)


def empty_tensor(shape: tuple[int, ...], code: int, requires_grad: bool) -> torch.Tensor:
    """Return a tensor without elements."""
    return torch.empty(shape, dtype=DTYPES[code], requires_grad=requires_grad, device="cpu")


def storage_at(offset: int, size_bytes: int) -> torch.UntypedStorage:
    """Return the memory below tensors."""
    if size_bytes == 0:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    flat = torch.frombuffer(
        _unpacking.buffer, dtype=torch.uint8, count=size_bytes, offset=offset
    )
    # The storage of `frombuffer` starts at the offset, not at the buffer's start.
    return flat.untyped_storage()


def generator_from(state: bytes, device: str) -> torch.Generator:
    """Return a generator in a state."""
    generator = torch.Generator(device)
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return generator


def array_at(
    offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: str
) -> npt.NDArray[Any]:
    """Return an array, in the order of C or Fortran."""
    flat = np.frombuffer(_unpacking.buffer, dtype, count=prod(shape), offset=offset)
    return flat.reshape(shape, order="F" if order == "F" else "C")
