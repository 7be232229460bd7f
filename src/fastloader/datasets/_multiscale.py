"""One image at several scales, which are made from the batch one after the other."""

import math
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from fastloader.datasets._fields import (
    Field,
    as_path,
    find_image,
    get_field,
    replace_field,
)
from fastloader.datasets._standardize import check_statistics, standardize
from fastloader.datasets._statistics import ChannelStatistics
from fastloader.datasets._wrapper import DatasetWrapper
from fastloader.errors import SettingsError, ShapeError
from fastloader.typing import Batch, Sample

__all__ = ["MultiScale", "Scale"]

Scale: TypeAlias = float | tuple[int, ...]
"""A factor of the image's size, or the size itself, in pixels: (height, width)."""


class MultiScale(DatasetWrapper):
    """A dataset whose batches can be seen at several scales.

    Samples and batches are those of the base: each image is read, stored, sent and copied to
    the device once, in its own dtype. `scales_of` then makes one scale after the other from a
    batch, where the batch is; a scale is freed before the next one is made unless the caller
    keeps it. Random changes belong below, ``MultiScale(Augment(images, ...), ...)``: they are
    drawn once and all scales show them.

    With a backward pass for each scale, only one scale's activations exist at a time, and the
    gradients add up to those of the sum of all losses::

        for batch in loader:
            for image, label in dataset.scales_of(batch):
                loss = criterion(model(image), label) / len(dataset.scales)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Args:
        dataset: Any dataset of images (C, H, W) or (C, D, H, W).
        scales: What `scales_of` gives, in this order: factors, or sizes in pixels.
        statistics: To standardize each scale by, after it was made; None leaves the values.
        field: Where the image is in a sample; see `DatasetWrapper`.
        labels: Label images (H, W) or (D, H, W), with or without an axis of channels: a field,
            or a list of fields. Each pixel takes the label of the nearest one.

    Raises:
        SettingsError: If a scale is no size, or `statistics` are none.

    Examples:
        >>> dataset = MultiScale([torch.zeros(1, 8, 8)], [1.0, 0.5, (2, 2)])
        >>> [tuple(images.shape) for images in dataset.scales_of(dataset[0][None])]
        [(1, 1, 8, 8), (1, 1, 4, 4), (1, 1, 2, 2)]
    """

    def __init__(
        self,
        dataset: Any,
        scales: Sequence[Scale],
        *,
        statistics: ChannelStatistics | None = None,
        field: Field = None,
        labels: Field | list[Field] = None,
    ) -> None:
        super().__init__(dataset, field=field)
        _check_scales(scales)
        if statistics is not None:
            check_statistics(statistics)
        self.scales = tuple(scales)
        self.statistics = statistics
        self.labels = labels

    def transform_sample(self, sample: Sample, index: Any) -> Sample:  # noqa: ARG002
        """Return the sample as it is.

        Args:
            sample: A sample of the base.
            index: Its index.
        """
        return sample

    def transform_batch(self, batch: Batch, indices: Sequence[Any]) -> Batch:  # noqa: ARG002
        """Return the batch as it is.

        Args:
            batch: A batch of the base.
            indices: Index of each sample.
        """
        return batch

    def scales_of(self, batch: Batch) -> Iterator[Batch]:
        """Yield a batch at each of the scales, made when it is asked for.

        Images become float32. They are made smaller by bilinear interpolation with a filter
        against aliasing, volumes by averaging; both are made larger by interpolation.

        Args:
            batch: A batch as the loader gives it, on any device; it is not changed.

        Yields:
            The batch with the image, and the labels, of one scale in place of its own.
        """
        path = find_image(batch, self.field, batched=True)
        paths = self.labels if isinstance(self.labels, list) else [self.labels]
        label_paths = [as_path(field) for field in paths if field is not None]
        images = get_field(batch, path)
        for scale in self.scales:
            size = _size(images.shape[2:], scale)
            scaled = _resize(images, size)
            if self.statistics is not None:
                scaled = standardize(scaled, self.statistics)
            result = replace_field(batch, path, scaled)
            del scaled  # or the next scale would be made beside it
            for label_path in label_paths:
                labels = get_field(batch, label_path)
                result = replace_field(result, label_path, _resize_labels(labels, size))
            yield result
            del result


def _resize(images: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """Return images of another size, as float32.

    Args:
        images: Shape (N, C, H, W) or (N, C, D, H, W), any real dtype.
        size: The new (H, W) or (D, H, W).

    Raises:
        ShapeError: If the images have another number of axes.
    """
    if images.ndim not in {4, 5} or len(size) != images.ndim - 2:
        raise ShapeError(
            "Expected images of shape (N, C, H, W) or (N, C, D, H, W) and a size for the "
            f"last axes, but got shape {tuple(images.shape)} and size {size}."
        )
    values = images.to(torch.float32)
    if tuple(images.shape[2:]) == size:
        return values
    if images.ndim == 4:
        return functional.interpolate(values, size, mode="bilinear", antialias=True)
    if all(new <= old for new, old in zip(size, images.shape[2:], strict=True)):
        return functional.interpolate(values, size, mode="area")
    return functional.interpolate(values, size, mode="trilinear")


def _resize_labels(labels: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """Return label images of another size: each pixel takes the label of the nearest one.

    Args:
        labels: Shape (N, ..., H, W) or (N, ..., D, H, W), any dtype.
        size: The new size of the last axes.
    """
    for axis, new in enumerate(size, labels.ndim - len(size)):
        old = labels.shape[axis]
        if new == old:
            continue
        centres = (torch.arange(new, device=labels.device) + 0.5) * (old / new)
        labels = labels.index_select(axis, centres.long().clamp_(max=old - 1))
    return labels


def _check_scales(scales: Any) -> None:
    """Check what images are to be brought to.

    Raises:
        SettingsError: If it is no list, or a scale is no size.
    """
    if not isinstance(scales, Sequence) or not scales or not all(map(_is_scale, scales)):
        raise SettingsError(
            "scales must be a list of factors above 0, or of sizes in whole pixels such as "
            f"(64, 64), but got {scales!r}."
        )


def _is_scale(scale: Any) -> bool:
    if isinstance(scale, tuple):
        return all(isinstance(length, Integral) and int(length) > 0 for length in scale)
    return isinstance(scale, Real) and 0 < float(scale) < math.inf


def _size(size: Sequence[int], scale: Scale) -> tuple[int, ...]:
    if isinstance(scale, tuple):
        return scale
    return tuple(max(1, round(length * scale)) for length in size)
