"""Windows of one size cut out of images, which may reach over the edge."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader.transforms._compiled import MOST_BYTES, kernels_for
from fastloader.transforms._pixels import empty_images

__all__ = ["cut_windows"]


def cut_windows(
    images: torch.Tensor,
    top: NDArray[np.int64],
    left: NDArray[np.int64],
    size: tuple[int, int],
    fill: torch.Tensor,
) -> torch.Tensor:
    """Cut a window out of each image.

    Args:
        images: Shape ``(N, C, H, W)``, of a dtype that torch can move.
        top: First row of each window, negative above the image, shape ``(N,)``.
        left: First column, alike.
        size: Height and width of the windows.
        fill: What pixels outside the image become, one value of the dtype.
    """
    if images.device.type != "cpu":
        return _cut_at_once(images, top, left, size, fill)
    batch = empty_images((*images.shape[:2], *size), images)
    kernels = kernels_for(batch)
    if kernels and batch.element_size() <= MOST_BYTES:
        kernels.cut(batch.numpy(), images.numpy(), top, left, fill.numpy().tobytes())
    else:
        _cut_one_by_one(images, top, left, fill, batch)
    return batch


def _cut_one_by_one(
    images: torch.Tensor,
    top: NDArray[np.int64],
    left: NDArray[np.int64],
    fill: torch.Tensor,
    batch: torch.Tensor,
) -> None:
    # Slices are copied row by row; a gather would look at each pixel. One thread: with two the
    # many calls of a few microseconds took longer.
    height, width = images.shape[2:]
    size = batch.shape[2:]
    value = fill.item()
    is_whole = (top >= 0) & (top <= height - size[0]) & (left >= 0) & (left <= width - size[1])
    places = zip(is_whole.tolist(), top.tolist(), left.tolist(), strict=True)
    for image, window, (is_inside, row, column) in zip(
        images.numpy(), batch.numpy(), places, strict=True
    ):
        if is_inside:
            window[:] = image[:, row : row + size[0], column : column + size[1]]
        else:
            _cut_at_edge(image, window, row, column, value)


def _cut_at_edge(
    image: NDArray[Any], window: NDArray[Any], row: int, column: int, value: float
) -> None:
    """Copy what of the window lies in the image, and fill in the rest."""
    window.fill(value)
    first_row, end_row = max(row, 0), min(row + window.shape[1], image.shape[1])
    first_column, end_column = max(column, 0), min(column + window.shape[2], image.shape[2])
    if first_row < end_row and first_column < end_column:
        window[
            :, first_row - row : end_row - row, first_column - column : end_column - column
        ] = image[:, first_row:end_row, first_column:end_column]


def _cut_at_once(
    images: torch.Tensor,
    top: NDArray[np.int64],
    left: NDArray[np.int64],
    size: tuple[int, int],
    fill: torch.Tensor,
) -> torch.Tensor:
    rows = torch.from_numpy(top[:, None] + np.arange(size[0])).to(images.device)
    columns = torch.from_numpy(left[:, None] + np.arange(size[1])).to(images.device)
    height, width = images.shape[2:]
    numbers = torch.arange(len(images), device=images.device)[:, None, None]
    y, x = rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]
    cut = images.permute(0, 2, 3, 1)[numbers, y, x].permute(0, 3, 1, 2)
    is_inside = ((rows >= 0) & (rows < height))[:, None, :, None]
    is_inside = is_inside & ((columns >= 0) & (columns < width))[:, None, None, :]
    return torch.where(is_inside, cut, fill.to(images.device))
