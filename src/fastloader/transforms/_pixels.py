"""Pixel types: which torch can move, which it can compute with, and the way back."""

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader.errors import SettingsError, ShapeError
from fastloader.tensors._buffers import allocating_scratch, empty_batch
from fastloader.transforms._blocks import num_at_once

__all__ = [
    "Fill",
    "as_computable",
    "as_dtype",
    "as_movable",
    "as_native",
    "check_fill",
    "computing_dtype",
    "empty_images",
    "fill_value",
    "is_computable",
    "mean_of_planes",
    "per_image",
    "write_rounded",
]

Fill: TypeAlias = float | Literal["mean"]
"""What masked pixels become: a number, or the mean of their channel in that image."""

# torch has the wide unsigned types, but not flip, where or index_put for them; NumPy has no
# bfloat16.
_SIGNED_TWIN: Final = {
    torch.uint16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
_SMALL_INTEGERS: Final = frozenset({torch.uint8, torch.int8, torch.uint16, torch.int16})
_MEAN_VALUES = 262_144  # in float64 they take two megabytes; more, smaller blocks take longer
# float32 holds every value of these, with bits to spare.
_NARROW: Final = frozenset({
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.float16,
    torch.bfloat16,
    torch.float32,
})


def as_movable(pixels: torch.Tensor) -> torch.Tensor:
    """Return the same memory with a type whose values torch can move about."""
    twin = _SIGNED_TWIN.get(pixels.dtype)
    return pixels if twin is None else pixels.view(twin)


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or float64 where float32 would lose some values.

    Raises:
        ShapeError: If it is complex or bool.
    """
    if dtype.is_complex or dtype is torch.bool:
        raise ShapeError(
            f"Expected images of whole or real numbers to compute with, but got {dtype}: "
            "convert them, for instance by .to(torch.uint8) or .abs()."
        )
    return torch.float32 if dtype in _NARROW else torch.float64


def as_computable(pixels: torch.Tensor) -> torch.Tensor:
    """Return the values in the type to compute with; see `computing_dtype`.

    Args:
        pixels: Tensor of any real dtype.
    """
    dtype = computing_dtype(pixels.dtype)
    if pixels.device.type != "cpu" or pixels.dtype == dtype:
        return pixels.to(dtype)
    return empty_batch(pixels.shape, dtype).copy_(pixels)


def as_native(tensor: torch.Tensor) -> Any:
    """Return an array over the same memory if the tensor is on the CPU.

    On small blocks NumPy's calls cost a third of torch's, and they wake no threads, which take
    longer than the work where cores are shared.

    Args:
        tensor: Of a dtype that NumPy has.
    """
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def is_computable(pixels: torch.Tensor) -> bool:
    """Return whether the values are what `as_computable` would make of them.

    Args:
        pixels: Tensor of any real dtype.
    """
    return pixels.dtype in {torch.float32, torch.float64}


def as_dtype(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return computed values in the dtype they came from.

    Integers are rounded to the nearest (halves to even) and end at the bounds of the type:
    wrapping round would make the brightest pixel black.

    Args:
        values: float32 or float64 tensor; it is written to if `dtype` is an integer type.
        dtype: The wanted type.
    """
    return _rounded(values, dtype).to(dtype)


def write_rounded(values: torch.Tensor, out: torch.Tensor) -> None:
    """Write computed values into a tensor, as `as_dtype` has them.

    Args:
        values: float32 or float64 tensor; it is written to if that of `out` is an integer
            type.
        out: Tensor of the same shape and the wanted type.
    """
    rounded = _rounded(values, out.dtype)
    if out.device.type == "cpu" and out.dtype is torch.uint8:  # torch takes three times as long
        with np.errstate(invalid="ignore"):  # NaN
            np.copyto(out.numpy(), rounded.numpy(), casting="unsafe")
    else:
        out.copy_(rounded)


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return values
    bounds = torch.iinfo(dtype)
    # The nearest float to 2**63 - 1 is 2**63, which does not fit: stay one float below.
    highest = float(bounds.max)
    if highest > bounds.max:
        highest = float(np.nextafter(highest, 0.0))
    return values.round_().clamp_(bounds.min, highest)


def empty_images(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised batch, where the loader wants batches if it is on the CPU.

    Args:
        shape: ``(N, C, H, W)``.
        like: Has the dtype and the device.
    """
    if like.device.type == "cpu":
        return empty_batch(shape, like.dtype)
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def per_image(values: NDArray[np.generic], images: torch.Tensor) -> torch.Tensor:
    """Return drawn numbers as a tensor that broadcasts against a batch of images.

    Args:
        values: Shape ``(N,)``, or ``(N, C)`` for one in each channel.
        images: Shape ``(N, C, H, W)``; a floating type is taken over.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if tensor.is_floating_point() and images.is_floating_point():
        tensor = tensor.to(images.dtype)
    return tensor.to(images.device).reshape(*tensor.shape, *[1] * (images.ndim - tensor.ndim))


def mean_of_planes(images: torch.Tensor) -> torch.Tensor:
    """Return the mean of each channel of each image, in float64.

    Pixels of a plane are added in an order that depends on their number alone: the same bits
    for one image and a batch, and for any number of threads. An accelerator has another order,
    which shows in the last bit at most; sums of small integers are exact, and so the same.

    Args:
        images: Shape ``(N, C, H, W)``, any real dtype.

    Returns:
        float64, shape ``(N, C, 1, 1)``.
    """
    planes = images.flatten(2)
    if images.device.type == "cpu":
        sums = torch.from_numpy(_sums(planes))
    else:
        sums = planes.to(torch.float64).sum(2)
    return (sums / planes.shape[2])[..., None, None]


def _sums(planes: torch.Tensor) -> NDArray[np.float64]:
    """Sum along the last axis, on the CPU."""
    if planes.dtype in _SMALL_INTEGERS:
        return np.asarray(planes.numpy().sum(2, dtype=np.float64))
    sums = np.empty(planes.shape[:2])
    step = num_at_once(planes, _MEAN_VALUES)
    # All are converted first: NumPy would do it piece by piece, and does not promise where a
    # piece ends, on which the order of the sum depends. It is a little quicker, too.
    with allocating_scratch():
        room = empty_batch((min(step, len(planes)), *planes.shape[1:]), torch.float64)
    for first in range(0, len(planes), step):
        some = planes[first : first + step]
        values = room[: len(some)].copy_(some).numpy()
        np.sum(values, axis=2, out=sums[first : first + step])
    return sums


def check_fill(fill: Fill) -> None:
    """Check what masked pixels shall become.

    Raises:
        SettingsError: If it is neither a number nor ``"mean"``.
    """
    if fill != "mean" and not isinstance(fill, int | float):
        raise SettingsError(f'fill must be a number or "mean", but got {fill!r}.')


def fill_value(images: torch.Tensor, fill: Fill) -> torch.Tensor:
    """Return what to put into masked pixels, broadcastable and in a movable dtype.

    Args:
        images: Shape ``(N, C, H, W)``, in its own dtype.
        fill: A number, or ``"mean"``.
    """
    if fill == "mean":
        return as_movable(as_dtype(mean_of_planes(images), images.dtype))
    value = torch.tensor(fill, dtype=torch.float64, device=images.device)
    return as_movable(as_dtype(value, images.dtype))
