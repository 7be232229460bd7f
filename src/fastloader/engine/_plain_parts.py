"""Tensors and arrays whose bytes in memory are their values, to be copied as they lie there."""

from typing import Any

import numpy as np
import torch

__all__ = ["address_of", "is_contiguous", "is_plain"]


def is_plain(part: Any) -> bool:
    """Return whether a copy of the values is all that collating adds of a tensor or an array."""
    if isinstance(part, np.ndarray):
        return True
    is_strided = part.layout is torch.strided and part.is_cpu
    return is_strided and not (part.requires_grad or part.is_conj() or part.is_neg())


def is_contiguous(part: Any) -> bool:
    """Return whether a tensor or an array lies in memory in one piece, row by row."""
    is_array = isinstance(part, np.ndarray)
    return bool(part.flags.c_contiguous if is_array else part.is_contiguous())


def address_of(part: Any) -> int:
    """Return where the first byte of a tensor or an array is."""
    return int(part.ctypes.data if isinstance(part, np.ndarray) else part.data_ptr())
