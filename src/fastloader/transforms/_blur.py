"""Gaussian blur with a width of its own for each image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader._keyed import Draws
from fastloader.transforms._blocks import num_at_once
from fastloader.transforms._bounds import Bounds, check_bounds, draw_between
from fastloader.transforms._pixels import as_native, empty_images, per_image
from fastloader.transforms._transform import IntensityTransform

__all__ = ["GaussianBlur"]

_BLOCK_VALUES = 65_536  # so that the six or so arrays in use stay in the cache of one core
_TRUNCATE = 4.0  # standard deviations, as in scipy.ndimage.gaussian_filter


@dataclass(frozen=True)
class GaussianBlur(IntensityTransform):
    """Blur each image with a Gaussian; pixels beyond the edge are those at the edge.

    It is a sum of shifted images, not a call to a convolution: libraries of these add in an
    order that depends on the size of the batch.
    """

    _makes_blocks: ClassVar[bool] = True
    sigma: Bounds = (0.0, 1.5)
    """Standard deviation of the Gaussian in pixels, or range to draw it from evenly for each
    image; 0: no blur."""

    def __post_init__(self) -> None:
        check_bounds("sigma", self.sigma, lowest=0.0)

    def compute(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Blur; see `IntensityTransform.compute`.

        Args:
            images: Shape ``(N, C, H, W)``.
            draws: Random numbers of the N images.
        """
        sigma = draw_between(draws, self.sigma)
        radii = (_TRUNCATE * sigma + 0.5).astype(np.int64)
        changed = empty_images(images.shape, images)
        size, num_channels = images.shape[2:], images.shape[1]
        planes, out = (as_native(each.reshape(-1, 1, *size)) for each in (images, changed))
        numbers = torch.arange(len(planes), device=images.device).reshape(-1, num_channels)
        step = num_at_once(images[:, :1], _BLOCK_VALUES)
        for radius in sorted(set(radii.tolist())):
            is_chosen = radii == radius
            weights = _weights(sigma[is_chosen], radius).repeat(num_channels, axis=0)
            factors = as_native(per_image(weights, images).flatten(1))
            chosen = as_native(numbers[torch.from_numpy(is_chosen).to(images.device)].flatten())
            for first in range(0, len(chosen), step):
                block = slice(first, first + step)
                rows = _summed(planes[chosen[block]], factors[block], 3)
                out[chosen[block]] = _summed(rows, factors[block], 2)
        return changed


def _weights(sigma: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """Return the weights of the centre and of each distance from it, shape (N, radius + 1)."""
    distance = np.arange(radius + 1)
    squares = (distance / np.maximum(sigma, 1e-6)[:, None]) ** 2
    weights = np.array([[math.exp(-0.5 * s) for s in row] for row in squares])
    total = weights[:, 0].copy()
    for column in range(1, radius + 1):
        total += 2 * weights[:, column]
    return cast("NDArray[np.float64]", weights / total[:, None])


def _summed(images: Any, factors: Any, axis: int) -> Any:
    """Sum shifted images by weight: tensors or arrays, which have the operations used here."""
    radius = factors.shape[1] - 1
    padded = _padded(images, radius, axis)
    # Images as lines: pixels at a distance along the axis lie a fixed number of places apart.
    # Sums of whole lines run several times faster than those of rows of 64 pixels; what they
    # make of the added pixels is left out below.
    lines = padded.reshape(len(images), -1)
    step = 1 if axis == 3 else images.shape[3]
    length = lines.shape[1] - 2 * radius * step
    summed = _empty(padded.shape, images)
    sums = summed.reshape(len(images), -1)[:, :length]
    pair = _empty(sums.shape, images)
    library = torch if isinstance(images, torch.Tensor) else np
    centre = radius * step
    library.multiply(lines[:, centre : centre + length], factors[:, :1], out=sums)
    for distance in range(1, radius + 1):
        before, after = (radius - distance) * step, (radius + distance) * step
        library.add(
            lines[:, before : before + length], lines[:, after : after + length], out=pair
        )
        pair *= factors[:, distance, None]
        sums += pair
    return summed[:, :, : images.shape[2], : images.shape[3]]


def _padded(images: Any, radius: int, axis: int) -> Any:
    """Repeat the pixels at both ends of an axis."""
    shape = list(images.shape)
    shape[axis] += 2 * radius
    padded = _empty(shape, images)
    to, of = (array.swapaxes(axis, 3) for array in (padded, images))
    end = shape[axis] - radius
    to[..., radius:end], to[..., :radius], to[..., end:] = of, of[..., :1], of[..., -1:]
    return padded


def _empty(shape: Sequence[int], like: Any) -> Any:
    if isinstance(like, torch.Tensor):
        return like.new_empty(tuple(shape))
    return np.empty(shape, like.dtype)
