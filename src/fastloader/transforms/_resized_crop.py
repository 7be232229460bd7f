"""Random resized crop: a window of any size and shape, brought to one size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader.errors import SettingsError, ShapeError
from fastloader.randomness._keyed import Draws
from fastloader.tensors._buffers import allocating_scratch
from fastloader.transforms._blocks import blocks, num_at_once
from fastloader.transforms._blockwise import BlockwiseTransform, Change
from fastloader.transforms._bounds import check_bounds, check_size
from fastloader.transforms._pixels import as_movable, as_native, empty_images, per_image

__all__ = ["RandomResizedCrop"]

_NUM_TRIES = 10


@dataclass(frozen=True)
class RandomResizedCrop(BlockwiseTransform):
    """Cut a window of random area and aspect ratio, and bring it to one size.

    The window is that of C. Szegedy et al., "Going deeper with convolutions" (CVPR 2015), as
    torchvision draws it: ten tries to fit, else the largest in the middle. It is resized
    linearly, and averaged where it gets smaller (antialiased), as by
    ``torch.nn.functional.interpolate(mode="bilinear", antialias=True)``. Labels are taken
    from the nearest pixel.
    """

    works_in_place: ClassVar[bool] = False
    # Many short calls: with two threads, images of 256 pixels took up to half as long again.
    part_values: ClassVar[int | None] = None
    size: int | tuple[int, int]
    """Height and width of the result in pixels; one number for a square."""
    area: tuple[float, float] = (0.08, 1.0)
    """Range of the area of the window as a share of that of the image, drawn evenly."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of width / height of the window, drawn evenly in its logarithm."""

    def __post_init__(self) -> None:
        check_size("size", self.size)
        for name in ("area", "ratio"):
            if not isinstance(getattr(self, name), tuple | list):
                raise SettingsError(
                    f"{name} must be a pair (low, high), but got {getattr(self, name)!r}."
                )
        if check_bounds("area", self.area)[0] <= 0 or self.area[1] > 1:
            raise SettingsError(f"area must lie above 0 and up to 1, but got {self.area}.")
        if check_bounds("ratio", self.ratio)[0] <= 0:
            raise SettingsError(f"ratio must be above 0, but got {self.ratio}.")

    def new_shape(self, shape: torch.Size) -> tuple[int, ...]:
        """Return the shape of the result; see `BlockwiseTransform.new_shape`."""
        return (*shape[:2], *check_size("size", self.size))

    def change(self, images: torch.Tensor, draws: Draws) -> Change:
        """Cut and resize; see `BlockwiseTransform.change`."""
        top, left, height, width = self.windows(images.shape[2:], draws)
        out_height, out_width = check_size("size", self.size)
        rows = _taps(top, height, out_height, images)
        columns = _taps(left, width, out_width, images)

        def cut(part: slice, images: torch.Tensor, out: torch.Tensor) -> None:
            step = min(len(images), num_at_once(images))
            num_values = step * images.shape[1] * out_height * max(images.shape[3], out_width)
            with allocating_scratch():
                first, second, third = (empty_images((num_values,), images) for _ in range(3))
            for few in blocks(images):
                block = slice(part.start + few.start, part.start + few.stop)
                cut_rows = _resampled(images[few], *rows, block, first, second, third)
                # Columns as rows: to turn the images twice takes less than to gather pixels.
                turned = _turned(cut_rows, _shaped(second, cut_rows.mT.shape))
                _turned(_resampled(turned, *columns, block, first, third, second), out[few])

        return cut

    def apply_to_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Cut and resize labels, each from the nearest pixel; see `Transform.apply_to_labels`."""
        top, left, height, width = self.windows(labels.shape[2:], draws)
        out_height, out_width = check_size("size", self.size)
        rows = np.floor(_centres(top, height, out_height) + 0.5).astype(np.int64)
        columns = np.floor(_centres(left, width, out_width) + 0.5).astype(np.int64)
        movable = as_movable(labels)
        cut = movable.new_empty((*labels.shape[:2], out_height, labels.shape[3]))
        _gather_rows(movable, _first_rows(movable) + rows[:, None], cut)
        return _gathered_columns(cut, columns).view(labels.dtype)

    def windows(self, shape: tuple[int, ...], draws: Draws) -> tuple[NDArray[np.int64], ...]:
        """Draw the windows.

        Args:
            shape: Height and width of the images.
            draws: Random numbers of N images.

        Returns:
            Top, left, height and width in pixels, each of shape ``(N,)``.

        Raises:
            ShapeError: If the images have no pixels.
        """
        height, width = shape
        if not height or not width:
            raise ShapeError(f"Images of {height} x {width} pixels cannot be resized.")
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
    start: NDArray[np.int64], length: NDArray[np.int64], size: int, images: torch.Tensor
) -> tuple[NDArray[np.int64], NDArray[np.int64], torch.Tensor]:
    """Return how many old pixels make a new one of each image, which, and their weights.

    Their shapes are (N,), (taps, N, 1, size) and (taps, N, 1, size, 1); the weights are like
    `images`.
    """
    centres = _centres(start, length, size)[:, :, None]
    reach = np.maximum(length / size, 1.0)[:, None, None]  # half the base of the triangle
    counts = np.ceil(2 * reach[:, 0, 0]).astype(np.int64)
    num_taps = int(counts.max(initial=2))
    taps = np.floor(centres - reach).astype(np.int64) + 1 + np.arange(num_taps)
    weights = np.maximum(1.0 - np.abs(taps - centres) / reach, 0.0)
    end = (start + length)[:, None, None]
    weights[(taps < start[:, None, None]) | (taps >= end)] = 0.0
    total = weights[:, :, 0].copy()
    for tap in range(1, num_taps):  # in this order for any number of taps
        total += weights[:, :, tap]
    weights /= total[:, :, None]
    positions = np.clip(taps, start[:, None, None], end - 1)
    by_tap = (np.ascontiguousarray(np.moveaxis(each, 2, 0)) for each in (positions, weights))
    positions, weights = (each[:, :, None] for each in by_tap)
    return counts, positions, torch.from_numpy(weights).to(images)[..., None]


def _resampled(
    images: torch.Tensor,
    counts: NDArray[np.int64],
    taps: NDArray[np.int64],
    weights: torch.Tensor,
    block: slice,
    *room: torch.Tensor,
) -> torch.Tensor:
    """Sum old rows by weight, in pieces of memory of which the last may be that of `images`.

    Images that shrink less than others have fewer taps. To give the others weight 0 would not
    do: 0 times NaN is NaN. So images are taken in the order of their numbers of taps.
    """
    shape = (*images.shape[:2], taps.shape[3], images.shape[3])
    resampled, part, ordered = (_shaped(each, shape) for each in room)
    counts, planes = counts[block], _first_rows(images)
    num_taps = int(counts.max())
    order = None if counts.min() == num_taps else np.argsort(-counts, kind="stable")
    for tap in range(num_taps):
        rows, factors = planes + taps[tap][block], weights[tap][block]
        gathered = part if tap else resampled
        if order is not None:
            taken = order[: np.count_nonzero(counts > tap)]
            rows, factors = rows[taken], factors[torch.from_numpy(taken).to(images.device)]
            gathered = gathered[: len(taken)]
        _gather_rows(images, rows, gathered)
        gathered *= factors
        if tap:
            resampled[: len(gathered)] += gathered
    if order is None:
        return resampled
    back = torch.from_numpy(np.argsort(order)).to(images.device)
    return torch.index_select(resampled, 0, back, out=ordered)


def _first_rows(images: torch.Tensor) -> NDArray[np.int64]:
    """Return the place of the first row of each channel among all rows, (N, C, 1)."""
    count, channels, height = images.shape[:3]
    return np.arange(0, count * channels * height, height).reshape(count, channels, 1)


def _gather_rows(images: torch.Tensor, rows: NDArray[np.int64], out: torch.Tensor) -> None:
    """Copy rows, given by their places among all rows."""
    places = torch.from_numpy(rows.reshape(-1)).to(images.device)
    width = images.shape[3]
    torch.index_select(images.reshape(-1, width), 0, places, out=out.view(-1, width))


def _gathered_columns(images: torch.Tensor, positions: NDArray[np.int64]) -> torch.Tensor:
    columns = per_image(positions, images).transpose(1, 3)
    return images.gather(3, columns.expand(*images.shape[:3], -1))


def _turned(images: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write the images with rows and columns exchanged."""
    as_native(out)[:] = as_native(images).swapaxes(2, 3)
    return out


def _shaped(room: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return room[: math.prod(shape)].view(tuple(shape))
