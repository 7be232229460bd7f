"""Gaussian blur with a width of its own for each image."""

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader._keyed import Draws
from fastloader.transforms._bounds import Bounds, check_bounds, draw_between
from fastloader.transforms._pixels import empty_images, per_image
from fastloader.transforms._transform import IntensityTransform

__all__ = ["GaussianBlur"]

_TRUNCATE = 4.0  # standard deviations, as in scipy.ndimage.gaussian_filter
_BLOCK_VALUES = 131_072  # for each thread: temporaries of half a megabyte stay in its cache


@dataclass(frozen=True)
class GaussianBlur(IntensityTransform):
    """Blur each image with a Gaussian; pixels beyond the edge are those at the edge.

    It is a sum of shifted images, not a call to a convolution: libraries of these add in an
    order that depends on the size of the batch.
    """

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
        _, highest = check_bounds("sigma", self.sigma)
        # From the bound, not from the draws: an image alone must get as many weights.
        weights = _weights(draw_between(draws, self.sigma), int(_TRUNCATE * highest + 0.5))
        changed = empty_images(images.shape, images)
        step = _num_at_once(images)
        for first in range(0, len(images), step):
            block = slice(first, first + step)
            blurred = _blurred(images[block], weights[block], axis=3)
            changed[block] = _blurred(blurred, weights[block], axis=2)
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


def _num_at_once(images: torch.Tensor) -> int:
    if images.device.type != "cpu":
        return max(1, len(images))
    num_values = _BLOCK_VALUES * torch.get_num_threads()
    return max(1, num_values // max(1, images[:1].numel()))


def _blurred(images: torch.Tensor, weights: NDArray[np.float64], axis: int) -> torch.Tensor:
    size, radius = images.shape[axis], weights.shape[1] - 1
    positions = torch.arange(-radius, size + radius, device=images.device)
    padded = images.index_select(axis, positions.clamp_(0, size - 1))
    blurred = padded.narrow(axis, radius, size) * per_image(weights[:, 0], images)
    for distance in range(1, radius + 1):
        before = padded.narrow(axis, radius - distance, size)
        pair = before + padded.narrow(axis, radius + distance, size)
        blurred += pair.mul_(per_image(weights[:, distance], images))
    return blurred
