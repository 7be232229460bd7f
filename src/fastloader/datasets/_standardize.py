"""Give the channels of images mean 0 and standard deviation 1."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fastloader.datasets._fields import Field
from fastloader.datasets._statistics import ChannelStatistics
from fastloader.datasets._wrapper import DatasetWrapper
from fastloader.errors import SettingsError, StatisticsError
from fastloader.tensors._buffers import empty_batch

__all__ = ["Standardize", "check_statistics", "standardize"]

# Values of these do not all fit into float32: they are centred first and then rounded.
_WIDE = {torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64}


_TILE_VALUES = 1 << 19  # 2 MB of the result: stays in the CPU's cache from step to step


class Standardize(DatasetWrapper):
    """A dataset whose images have mean 0 and standard deviation 1 in each channel.

    Images come out as float32, whatever they were: ``(image - mean) / std``. A constant
    channel (see `ChannelStatistics`) carries no signal and becomes 0. Nothing is clipped, and
    no epsilon is added. Where float32 would not hold pixels or means well enough, float64 is
    computed with. A batch is changed at once, with the same result to the last bit.

    Args:
        dataset: Any map-style or iterable dataset.
        statistics: Those of the training images, also for validation and test.
        field: Where the image is in a sample; see `DatasetWrapper`.

    Raises:
        SettingsError: If `statistics` are none.

    Examples:
        >>> images = [torch.full((1, 2, 2), value) for value in (1.0, 3.0)]
        >>> Standardize(images, ChannelStatistics.of(images))[1].unique()
        tensor([1.])
    """

    def __init__(
        self, dataset: Any, statistics: ChannelStatistics, *, field: Field = None
    ) -> None:
        super().__init__(dataset, field=field)
        check_statistics(statistics)
        self.statistics = statistics

    def transform_images(self, images: torch.Tensor, _indices: Sequence[Any]) -> torch.Tensor:
        """Return the standardized images of a batch.

        Args:
            images: Shape (N, ...).
        """
        return standardize(images, self.statistics)


def check_statistics(statistics: object) -> None:
    """Check what images are to be standardized by.

    Args:
        statistics: What the caller gave.

    Raises:
        SettingsError: If it is no `ChannelStatistics`.
    """
    if not isinstance(statistics, ChannelStatistics):
        raise SettingsError(
            f"statistics must be ChannelStatistics, but got {statistics!r}: take them by "
            "ChannelStatistics.of(dataset), or read them by ChannelStatistics.load(path)."
        )


def standardize(images: torch.Tensor, statistics: ChannelStatistics) -> torch.Tensor:
    """Return a batch of images with mean 0 and standard deviation 1 in each channel.

    What `Standardize` does, for a batch that is already on its device.

    Args:
        images: Shape (N, ...) of any real dtype, on any device; it is not changed.
        statistics: Those of the training images.

    Returns:
        A new float32 tensor of the same shape, on the same device.

    Raises:
        StatisticsError: If the images have other channels than the statistics.
        SettingsError: If `statistics` are none.
    """
    check_statistics(statistics)
    axis = statistics.channel_axis
    if axis is not None and (
        images.ndim < axis + 2 or images.shape[axis + 1] != statistics.num_channels
    ):
        raise StatisticsError(
            f"Expected images with {statistics.num_channels} channels on axis {axis}, as the "
            f"statistics have, but got images of shape {tuple(images.shape[1:])}."
        )
    is_wide = images.dtype in _WIDE or _means_need_float64(statistics)
    dtype = torch.float64 if is_wide else torch.float32
    mean, scale = _mean_and_scale(statistics, images.ndim, dtype, images.device)
    if dtype is torch.float64:
        return ((images.to(dtype) - mean) * scale).to(torch.float32)
    if images.device.type != "cpu" or images.requires_grad or not len(images):
        return (images.to(dtype) - mean) * scale
    out = empty_batch(images.shape, dtype)
    step = max(1, _TILE_VALUES * len(images) // max(1, images.numel()))
    for target, source in zip(torch.split(out, step), torch.split(images, step), strict=True):
        # Two operations that each round once: a fused one would round differently where its
        # vector instructions end, and a batch would not equal its samples.
        target.copy_(source).sub_(mean).mul_(scale)
    return out


@lru_cache(maxsize=32)
def _means_need_float64(statistics: ChannelStatistics) -> bool:
    """Return whether what means lose as float32 would show, for channels that vary little."""
    mean, std = statistics.mean, statistics.std
    with np.errstate(over="ignore"):
        lost = np.abs(mean - mean.astype(np.float32))
    return bool((lost[std > 0] > 1e-6 * std[std > 0]).any())


@lru_cache(maxsize=32)
def _mean_and_scale(
    statistics: ChannelStatistics, num_axes: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and 1 / std, to be broadcast over a batch."""
    mean, std = (torch.from_numpy(values) for values in (statistics.mean, statistics.std))
    shape = [1] * num_axes
    if statistics.channel_axis is not None:
        shape[statistics.channel_axis + 1] = -1
    scale = torch.where(std > 0, 1 / std, 0.0)
    return mean.reshape(shape).to(device, dtype), scale.reshape(shape).to(device, dtype)
