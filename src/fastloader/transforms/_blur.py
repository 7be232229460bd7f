"""Gaussian blur with a width of its own for each image."""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader.randomness._keyed import Draws
from fastloader.transforms._blocks import num_at_once
from fastloader.transforms._blockwise import BlockwiseTransform, Change
from fastloader.transforms._bounds import Bounds, check_bounds, draw_between
from fastloader.transforms._pixels import as_native, per_image

__all__ = ["GaussianBlur"]

_BLOCK_VALUES = 131_072  # fewer, and calls take longer than what the cache saves
_LINE_VALUES = 16_384  # of an image, summed at once: they stay in the innermost cache
_WIDEST_COMPILED = 64.0  # standard deviations; the kernel pads rows and columns at once
_TRUNCATE = 4.0  # standard deviations, as in scipy.ndimage.gaussian_filter


@dataclass(frozen=True)
class GaussianBlur(BlockwiseTransform):
    """Blur each image with a Gaussian; pixels beyond the edge are those at the edge.

    It is a sum of shifted images, not a call to a convolution: libraries of these add in an
    order that depends on the size of the batch.
    """

    works_in_place: ClassVar[bool] = False
    part_values: ClassVar[int | None] = 3 << 19  # each image takes calls of its own
    block_values: ClassVar[int] = (
        1 << 20
    )  # images that are blurred alike are few in a small one
    sigma: Bounds = (0.0, 1.5)
    """Standard deviation of the Gaussian in pixels, or range to draw it from evenly for each
    image; 0: no blur."""

    def __post_init__(self) -> None:
        check_bounds("sigma", self.sigma, lowest=0.0)

    def change(self, images: torch.Tensor, draws: Draws) -> Change:
        """Blur; see `BlockwiseTransform.change`."""
        del images
        all_sigma, all_radii = self._widths(draws)

        def blur(part: slice, images: torch.Tensor, out: torch.Tensor) -> None:
            sigma, radii = all_sigma[part], all_radii[part]
            blur_alike = _blur_on_cpu if images.device.type == "cpu" else _blur_on_device
            step = num_at_once(images, _BLOCK_VALUES)
            for radius in sorted(set(radii.tolist())):
                chosen = np.flatnonzero(radii == radius)
                weights = per_image(_weights(sigma[chosen], radius), images).flatten(1)
                for first in range(0, len(chosen), step):
                    few = slice(first, first + step)
                    blur_alike(images, chosen[few], weights[few], out)

        return blur

    def compiled_change(
        self, kernels: ModuleType, images: torch.Tensor, draws: Draws
    ) -> Change | None:
        """Blur; see `BlockwiseTransform.compiled_change`."""
        height, width = images.shape[2:]
        if min(height, width) == 1 or height * width % _LINE_VALUES == 1:
            return None  # a line of one pixel, or a single row: NumPy adds in another order
        highest = self.sigma[1] if isinstance(self.sigma, tuple | list) else self.sigma
        if highest > _WIDEST_COMPILED:
            return None
        sigma, radii = self._widths(draws)
        weights = np.zeros((len(draws), 2 * radii.max(initial=0) + 1), as_native(images).dtype)
        for radius in set(radii.tolist()):
            chosen = np.flatnonzero(radii == radius)
            weights[chosen, : 2 * radius + 1] = _weights(sigma[chosen], radius)

        def blur(part: slice, images: torch.Tensor, out: torch.Tensor) -> None:
            kernels.blur(out.numpy(), images.numpy(), radii[part], weights[part])

        return blur

    def _widths(self, draws: Draws) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw the standard deviation of each image, and how far its Gaussian reaches."""
        sigma = draw_between(draws, self.sigma)
        return sigma, (_TRUNCATE * sigma + 0.5).astype(np.int64)


def _weights(sigma: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """Return the weights of all distances from -radius to radius, shape (N, 2 * radius + 1)."""
    # exp(-d**2 / (2 * sigma**2)) of one distance from that of the one before, since the last
    # bit of NumPy's exponential is not promised to be the same for one image and many.
    decay = np.array([math.exp(-0.5 / max(each, 1e-6) ** 2) for each in sigma.tolist()])
    weights = np.ones((len(sigma), 2 * radius + 1))
    weight, total, ratio = np.ones(len(sigma)), np.ones(len(sigma)), decay.copy()
    for distance in range(1, radius + 1):
        weight *= ratio
        ratio *= decay**2
        total += 2 * weight
        weights[:, radius - distance] = weights[:, radius + distance] = weight
    weights /= total[:, None]
    return weights


def _blur_on_cpu(
    images: torch.Tensor, chosen: NDArray[np.int64], weights: torch.Tensor, out: torch.Tensor
) -> None:
    """Blur the chosen images, all by weights of the same number, shape (n, taps)."""
    sources, targets, factors = (as_native(each) for each in (images, out, weights))
    numbers = chosen.tolist()
    if factors.shape[1] == 1:  # the weight is 1
        for number in numbers:
            targets[number] = sources[number]
        return
    # Columns are summed as rows of the turned image: rows of a line lie apart by the same
    # number of places, and long lines are summed several times faster than rows of 64 pixels.
    rows = _summed_rows([sources[number] for number in numbers], factors)
    turned = _summed_rows(list(rows.swapaxes(2, 3)), factors)
    for number, blurred in zip(numbers, turned.swapaxes(2, 3), strict=True):
        targets[number] = blurred


def _summed_rows(images: list[NDArray[Any]], factors: NDArray[Any]) -> NDArray[Any]:
    """Sum rows by weight, with the first and the last row repeated."""
    channels, height, width = images[0].shape
    radius = factors.shape[1] // 2
    end = radius + height
    padded = np.empty((len(images), channels, end + radius, width), images[0].dtype)
    for target, image in zip(padded, images, strict=True):
        target[:, radius:end] = image
    padded[:, :, :radius] = padded[:, :, radius : radius + 1]
    padded[:, :, end:] = padded[:, :, end - 1 : end]
    summed = np.empty((len(images), channels, height, width), padded.dtype)
    lines = summed.reshape(len(images), channels, height * width)
    of_image, of_channel, of_row, of_pixel = padded.strides
    shifted: NDArray[Any] = np.ndarray(
        (len(images), channels, factors.shape[1], lines.shape[2]),
        padded.dtype,
        padded,
        strides=(of_image, of_channel, of_row, of_pixel),
    )
    # A product and a sum in one pass; products of whole arrays would take three.
    for first in range(0, lines.shape[2], _LINE_VALUES):
        piece = slice(first, first + _LINE_VALUES)
        np.einsum("nk,nckl->ncl", factors, shifted[..., piece], out=lines[..., piece])
    return summed


def _blur_on_device(
    images: torch.Tensor, chosen: NDArray[np.int64], weights: torch.Tensor, out: torch.Tensor
) -> None:
    """Do what `_blur_on_cpu` does, with the same operations in the same order."""
    numbers = torch.from_numpy(chosen).to(images.device)
    blurred = images[numbers]
    if weights.shape[1] > 1:
        for _axis in range(2):
            blurred = _summed_rows_on_device(blurred, weights).mT
    out[numbers] = blurred


def _summed_rows_on_device(images: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    height, num_weights = images.shape[2], weights.shape[1]
    rows = torch.arange(height, device=images.device)
    summed = torch.zeros_like(images)
    for number in range(num_weights):
        shifted = images[:, :, (rows + (number - num_weights // 2)).clamp(0, height - 1)]
        summed += shifted * weights[:, number, None, None, None]
    return summed
