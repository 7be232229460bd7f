"""Writes pixels to where they stay in a batch, converted on their way."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastloader.sources import WritePixels

__all__ = ["batch_writer"]

Pixels: TypeAlias = npt.NDArray[Any]
"""Named, since functions in functions look their types up each time they are made."""

_FLOATS = {torch.float32, torch.float64}
"""Types to which NumPy converts as torch does."""


def batch_writer(
    out: torch.Tensor, stored: np.dtype[np.generic], scale: float | None
) -> WritePixels | None:
    """Return what puts pixels into a batch without a copy in between, None if nothing can.

    Args:
        out: Batch to write to.
        stored: Type of the pixels.
        scale: Factor for each pixel after conversion to a floating type.

    Returns:
        Takes positions in bytes of `stored`, as if the batch were of that type.
    """
    if not out.is_contiguous() or out.dtype in {torch.float16, torch.bfloat16}:
        return None
    pixels = out.view(-1).numpy()
    if pixels.dtype != stored and out.dtype not in _FLOATS:
        return None

    def write(offset_bytes: int, array: Pixels) -> None:
        start = offset_bytes // stored.itemsize
        target = pixels[start : start + array.size]
        np.copyto(target, array.reshape(-1), casting="unsafe")
        if scale is not None:
            np.multiply(target, target.dtype.type(scale), out=target)

    return write
