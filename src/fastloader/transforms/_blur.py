"""Gaussian blur with a width of its own for each image."""

import math
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader._keyed import Draws
from fastloader.transforms._blocks import num_at_once
from fastloader.transforms._bounds import Bounds, check_bounds, draw_between
from fastloader.transforms._pixels import empty_images, per_image
from fastloader.transforms._transform import IntensityTransform

__all__ = ["GaussianBlur"]

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
        for radius in sorted(set(radii.tolist())):
            chosen = np.flatnonzero(radii == radius)
            weights = _weights(sigma[chosen], radius)
            step = num_at_once(images)
            for first in range(0, len(chosen), step):
                block = slice(first, first + step)
                numbers = torch.from_numpy(chosen[block]).to(images.device)
                blurred = images.index_select(0, numbers)
                for axis in (3, 2):
                    blurred = _blurred(blurred, weights[block], axis)
                changed.index_copy_(0, numbers, blurred)
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


def _blurred(images: torch.Tensor, weights: NDArray[np.float64], axis: int) -> torch.Tensor:
    """Blur along one axis, each image with its own weights."""
    radius = weights.shape[1] - 1
    padded = _padded(images, radius, axis)
    # Images as lines: pixels at a distance along the axis lie a fixed number of places apart.
    # Sums of whole lines run several times faster than those of rows of 64 pixels; what they
    # make of the added pixels is left out below.
    lines = padded.reshape(len(images), -1)
    step = padded.stride(axis)
    length = lines.shape[1] - 2 * radius * step
    factors = per_image(weights, images)
    blurred = lines.narrow(1, radius * step, length) * factors[:, 0, :, 0]
    pair = torch.empty_like(blurred)
    for distance in range(1, radius + 1):
        before = lines.narrow(1, (radius - distance) * step, length)
        after = lines.narrow(1, (radius + distance) * step, length)
        torch.add(before, after, out=pair)
        blurred += pair.mul_(factors[:, distance, :, 0])
    return blurred.as_strided(images.shape, (length, *padded.stride()[1:]))


def _padded(images: torch.Tensor, radius: int, axis: int) -> torch.Tensor:
    """Repeat the pixels at both ends of an axis."""
    size = images.shape[axis]
    shape = list(images.shape)
    shape[axis] += 2 * radius
    padded = images.new_empty(shape)
    padded.narrow(axis, radius, size).copy_(images)
    padded.narrow(axis, 0, radius).copy_(images.narrow(axis, 0, 1))
    padded.narrow(axis, radius + size, radius).copy_(images.narrow(axis, size - 1, 1))
    return padded
