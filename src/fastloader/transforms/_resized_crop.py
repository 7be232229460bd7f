"""Random resized crop: a window of any size and shape, brought to one size."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader._keyed import Draws
from fastloader.errors import SettingsError
from fastloader.transforms._blocks import blocks
from fastloader.transforms._bounds import check_bounds, check_size
from fastloader.transforms._pixels import as_movable, empty_images, per_image
from fastloader.transforms._transform import IntensityTransform

__all__ = ["RandomResizedCrop"]

_NUM_TRIES = 10


@dataclass(frozen=True)
class RandomResizedCrop(IntensityTransform):
    """Cut a window of random area and aspect ratio, and bring it to one size.

    The window is that of C. Szegedy et al., "Going deeper with convolutions" (CVPR 2015), as
    torchvision draws it: ten tries to fit, else the largest in the middle. It is resized
    linearly, and averaged where it gets smaller (antialiased), as by
    ``torch.nn.functional.interpolate(mode="bilinear", antialias=True)``. Labels are taken
    from the nearest pixel.
    """

    _makes_blocks: ClassVar[bool] = True
    size: int | tuple[int, int]
    """Height and width of the result in pixels; one number for a square."""
    area: tuple[float, float] = (0.08, 1.0)
    """Range of the area of the window as a share of that of the image, drawn evenly."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of width / height of the window, drawn evenly in its logarithm."""

    def __post_init__(self) -> None:
        check_size("size", self.size)
        if check_bounds("area", self.area)[0] <= 0 or self.area[1] > 1:
            raise SettingsError(f"area must lie above 0 and up to 1, but got {self.area}.")
        if check_bounds("ratio", self.ratio)[0] <= 0:
            raise SettingsError(f"ratio must be above 0, but got {self.ratio}.")

    def compute(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Cut and resize; see `IntensityTransform.compute`.

        Args:
            images: Shape ``(N, C, H, W)``.
            draws: Random numbers of the N images.
        """
        top, left, height, width = self.windows(images.shape[2:], draws)
        out_height, out_width = check_size("size", self.size)
        rows, row_weights = _taps(top, height, out_height)
        columns, column_weights = _taps(left, width, out_width)
        shape = (*images.shape[:2], out_height, out_width)
        changed = empty_images(shape, images)
        for block in blocks(images):
            cut = _resampled(images[block], rows[block], row_weights[block], axis=2)
            changed[block] = _resampled(cut, columns[block], column_weights[block], axis=3)
        return changed

    def apply_to_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Cut and resize labels, each from the nearest pixel; see `Transform.apply_to_labels`.

        Args:
            labels: Shape ``(N, C, H, W)``, any dtype.
            draws: Random numbers of the N images.
        """
        top, left, height, width = self.windows(labels.shape[2:], draws)
        out_height, out_width = check_size("size", self.size)
        rows = np.floor(_centres(top, height, out_height) + 0.5).astype(np.int64)
        columns = np.floor(_centres(left, width, out_width) + 0.5).astype(np.int64)
        cut = _gathered(as_movable(labels), rows, axis=2)
        return _gathered(cut, columns, axis=3).view(labels.dtype)

    def windows(self, shape: tuple[int, ...], draws: Draws) -> tuple[NDArray[np.int64], ...]:
        """Draw the windows.

        Args:
            shape: Height and width of the images.
            draws: Random numbers of N images.

        Returns:
            Top, left, height and width in pixels, each of shape ``(N,)``.
        """
        height, width = shape
        low, high = np.log(self.ratio)
        area = draws.uniform(*self.area, _NUM_TRIES) * (height * width)
        ratio = np.exp(draws.uniform(low, high, _NUM_TRIES))
        heights = np.rint(np.sqrt(area / ratio)).astype(np.int64)
        widths = np.rint(np.sqrt(area * ratio)).astype(np.int64)
        fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
        first = fits.argmax(axis=1)
        number = np.arange(len(draws))
        found = fits[number, first]
        middle_height, middle_width = _largest(height, width, self.ratio)
        heights = np.where(found, heights[number, first], middle_height)
        widths = np.where(found, widths[number, first], middle_width)
        top = draws.integers(0, height - heights + 1)
        left = draws.integers(0, width - widths + 1)
        top = np.where(found, top, (height - heights) // 2)
        left = np.where(found, left, (width - widths) // 2)
        return top, left, heights, widths


def _largest(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Return height and width of the largest window with an allowed aspect ratio."""
    low, high = ratio
    if width < low * height:
        return max(1, round(width / low)), width
    if width > high * height:
        return height, max(1, round(height * high))
    return height, width


def _centres(
    start: NDArray[np.int64], length: NDArray[np.int64], size: int
) -> NDArray[np.float64]:
    """Return where the centre of each of `size` new pixels lies among the old ones, (N, size)."""
    middles = np.arange(size) + 0.5
    return np.asarray(start[:, None] + middles * length[:, None] / size - 0.5)


def _taps(
    start: NDArray[np.int64], length: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return which old pixels make each new one, and their weights, both (N, size, taps)."""
    centres = _centres(start, length, size)[:, :, None]
    reach = np.maximum(length / size, 1.0)[:, None, None]  # half the base of the triangle
    num_taps = int(np.ceil(2 * reach.max(initial=1.0)))
    taps = np.floor(centres - reach).astype(np.int64) + 1 + np.arange(num_taps)
    weights = np.maximum(1.0 - np.abs(taps - centres) / reach, 0.0)
    end = (start + length)[:, None, None]
    weights[(taps < start[:, None, None]) | (taps >= end)] = 0.0
    total = weights[:, :, 0].copy()
    for tap in range(1, num_taps):  # in this order for any number of taps
        total += weights[:, :, tap]
    return np.clip(taps, start[:, None, None], end - 1), weights / total[:, :, None]


def _resampled(
    images: torch.Tensor, taps: NDArray[np.int64], weights: NDArray[np.float64], axis: int
) -> torch.Tensor:
    """Sum old pixels by weight along one axis.

    Taps of weight 0, which an image has only beside others that shrink more, add nothing.
    """
    resampled = torch.zeros(())
    for tap in range(taps.shape[2]):
        part = _gathered(images, taps[:, :, tap], axis)
        part *= _along(per_image(weights[:, :, tap], images), axis)
        resampled = part if tap == 0 else resampled.add_(part)
    return resampled


def _gathered(images: torch.Tensor, positions: NDArray[np.int64], axis: int) -> torch.Tensor:
    count, channels, height, width = images.shape
    if axis == 3:
        columns = _along(per_image(positions, images), axis)
        return images.gather(3, columns.expand(count, channels, height, -1))
    # Whole rows are copied much faster than pixels are gathered.
    planes = np.arange(count * channels).reshape(count, channels, 1) * height
    rows = torch.from_numpy((planes + positions[:, None, :]).reshape(-1)).to(images.device)
    chosen = images.reshape(-1, width).index_select(0, rows)
    return chosen.reshape(count, channels, -1, width)


def _along(values: torch.Tensor, axis: int) -> torch.Tensor:
    return values.transpose(1, axis)
