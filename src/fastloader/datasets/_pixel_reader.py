"""Find the pixels in samples and take their moments."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import torch

from fastloader.datasets._fields import Field, Path, as_path, find_image, get_field
from fastloader.datasets._moments import (
    TILE_VALUES,
    Moments,
    RoundedMoments,
    merge_moments,
    moments_of,
    moments_of_each,
)
from fastloader.errors import StatisticsError

__all__ = [
    "LARGE_BYTES",
    "ChannelAxis",
    "NanPolicy",
    "PixelReader",
    "as_pixels",
    "merged",
    "resolve_axis",
]

ChannelAxis: TypeAlias = int | Literal["auto"] | None
NanPolicy: TypeAlias = Literal["raise", "omit"]

_Array: TypeAlias = np.ndarray[Any, Any]

LARGE_BYTES = 1 << 17
"""Images from this size on are read and summed one by one: a batch of them would be a copy."""
_DTYPE = attrgetter("dtype")
_SHAPE_AND_DTYPE = attrgetter("shape", "dtype")


@dataclass(frozen=True, slots=True)
class PixelReader:
    """Finds the pixels of samples and takes their moments."""

    path: Path
    """Where the image is in a sample."""
    channel_axis: int | None
    """Axis of the channels in the image of one sample; None: all pixels are one channel."""
    mask_path: Path | None = None
    """Where the mask is, true for pixels that count; None: all count."""
    nan_policy: NanPolicy = "raise"

    def __post_init__(self) -> None:
        if self.nan_policy not in {"raise", "omit"}:
            raise StatisticsError(
                f'nan_policy must be "raise" or "omit", but got {self.nan_policy!r}.'
            )

    @classmethod
    def for_samples_like(
        cls,
        sample: Any,
        *,
        field: Field = None,
        channel_axis: ChannelAxis = "auto",
        mask: Field = None,
        nan_policy: NanPolicy = "raise",
    ) -> Self:
        """Return a reader, with whatever was left open decided by one sample.

        Args:
            sample: Any sample of the dataset.
            field: Where the image is in a sample; None: search.
            channel_axis: As of the class; "auto": the first, unless the image has two axes.
            mask: Where the mask is in a sample; None: there is none.
            nan_policy: As of the class.
        """
        path = find_image(sample, field)
        axis = resolve_axis(channel_axis, as_pixels(get_field(sample, path)).ndim)
        mask_path = None if mask is None else as_path(mask)
        return cls(path, axis, mask_path, nan_policy)

    def of_batch(self, batch: Any, indices: Sequence[Any]) -> Moments:
        """Take the moments of a collated batch.

        Args:
            batch: A batch of the dataset.
            indices: Index of each sample, to be named in an error.
        """
        masks = None if self.mask_path is None else as_pixels(get_field(batch, self.mask_path))
        return self._of_images(as_pixels(get_field(batch, self.path)), masks, indices)

    def of_samples(self, samples: Sequence[Any], indices: Sequence[Any]) -> Iterator[Moments]:
        """Take the moments of samples, several at once where they are small and alike.

        Args:
            samples: Some samples.
            indices: Index of each, to be named in an error.

        Yields:
            Moments of the next few samples.
        """
        images = _pixels_at(samples, self.path)
        masks = [] if self.mask_path is None else _pixels_at(samples, self.mask_path)
        for run in _alike(images, masks):
            yield from self._of_alike(images[run], masks[run], indices[run])

    def _of_alike(
        self, images: Sequence[_Array], masks: Sequence[_Array], indices: Sequence[Any]
    ) -> Iterator[Moments]:
        """Take the moments of images of one shape and dtype, with masks of one shape or none."""
        first = images[0]
        fits = 0 < first.size <= TILE_VALUES and first.ndim and not masks
        if fits and self.channel_axis in {None, 0}:
            yield self._of_each(images, indices)
            return
        step = 1 if first.nbytes >= LARGE_BYTES else len(images)
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            stacked_masks = _stack(masks[part]) if masks else None
            yield self._of_images(_stack(images[part]), stacked_masks, indices[part])

    def _of_each(self, images: Sequence[_Array], indices: Sequence[Any]) -> Moments:
        """Take the moments of small images of one shape, without masks, channels first."""
        num_channels = 1 if self.channel_axis is None else len(images[0])
        with np.errstate(invalid="ignore", over="ignore"):
            moments = moments_of_each(images, num_channels)
        if _is_finite(moments):
            return moments
        return self._of_images(_stack(images), None, indices)

    def _of_images(
        self, images: _Array, masks: _Array | None, indices: Sequence[Any]
    ) -> Moments:
        """Take the moments of images of one shape.

        Args:
            images: Shape (N, ...).
            masks: Shape (N, ...), with or without the axis of the channels.
            indices: Index of each.

        Raises:
            StatisticsError: If the channel axis or the mask does not fit, or pixels are not
                finite and must be.
        """
        shape = images.shape[1:]
        if self.channel_axis is not None and self.channel_axis >= len(shape):
            raise StatisticsError(
                f"Expected the channels on axis {self.channel_axis} of each image, but sample "
                f"{indices[0]} has shape {shape}: pass another channel_axis, or None to take "
                "all pixels together."
            )
        keep = None
        if masks is not None:
            keep = self._by_channel(self._broadcast(masks, images, indices[0]) != 0)
        pixels = self._by_channel(images)
        # Infinities and NaN show up in the result, where looking for them costs nothing.
        with np.errstate(invalid="ignore", over="ignore"):
            moments = moments_of(pixels, keep)
        if _is_finite(moments):
            return moments
        return self._without_non_finite(pixels, keep, indices)

    def _without_non_finite(
        self, pixels: _Array, keep: _Array | None, indices: Sequence[Any]
    ) -> Moments:
        is_finite = np.isfinite(pixels)
        if self.nan_policy == "omit":
            with np.errstate(over="ignore"):
                moments = moments_of(pixels, is_finite if keep is None else is_finite & keep)
            if _is_finite(moments):
                return moments
        if keep is not None:
            is_finite |= ~keep
        bad = np.flatnonzero(~is_finite.all(axis=(1, 2)))
        if bad.size == 0:
            raise StatisticsError(
                f"The squares of the pixels of samples {indices[0]} to {indices[-1]} exceed "
                "what float64 can hold."
            )
        raise StatisticsError(
            f"Expected finite pixels, but {int((~is_finite[bad[0]]).sum())} of sample "
            f'{indices[bad[0]]} are NaN or infinite: pass nan_policy="omit" to leave such '
            "pixels out, or a mask."
        )

    def _by_channel(self, images: _Array) -> _Array:
        """Return images of shape (N, ...) as (N, C, P)."""
        if self.channel_axis is None:
            return images.reshape(len(images), 1, -1)
        moved = images
        if self.channel_axis != 0:
            moved = np.moveaxis(images, self.channel_axis + 1, 1)
        return moved.reshape(*moved.shape[:2], -1) if moved.ndim > 2 else moved[:, :, None]

    def _broadcast(self, masks: _Array, images: _Array, index: Any) -> _Array:
        full = masks
        if self.channel_axis is not None and masks.ndim == images.ndim - 1:
            full = np.expand_dims(masks, self.channel_axis + 1)
        try:
            return np.broadcast_to(full, images.shape)
        except ValueError as error:
            raise StatisticsError(
                f"Expected a mask that fits the image, but sample {index} has an image of "
                f"shape {images.shape[1:]} and a mask of shape {masks.shape[1:]}."
            ) from error


def resolve_axis(channel_axis: ChannelAxis, num_axes: int) -> int | None:
    """Return the axis of the channels in an image.

    Args:
        channel_axis: An axis from 0, None, or "auto": the first, unless there are two.
        num_axes: Number of axes of an image.

    Raises:
        StatisticsError: If it is negative.
    """
    if channel_axis == "auto":
        return None if num_axes == 2 else 0
    if channel_axis is not None and channel_axis < 0:
        raise StatisticsError(
            f"channel_axis counts from the front of one image, but got {channel_axis}."
        )
    return channel_axis


def merged(first: Moments, second: Moments) -> Moments:
    """Return the moments of both, if they have the same channels.

    Raises:
        StatisticsError: If the numbers of channels differ.
    """
    if len(first.counts) != len(second.counts):
        raise StatisticsError(
            f"Expected the same channels everywhere, but found images of {len(first.counts)} "
            f"channels and of {len(second.counts)} channels: pass channel_axis=None to take all pixels "
            "together, or the right axis."
        )
    return merge_moments(first, second)


def as_pixels(values: Any) -> _Array:
    """Return a tensor or array as an array of real numbers, without a copy where possible.

    Args:
        values: An image, a batch of images, or a mask.

    Raises:
        StatisticsError: If these are no real numbers.
    """
    if type(values) is not np.ndarray and isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype is torch.bfloat16 else values).numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise StatisticsError(
            f"Expected images of real numbers, but got dtype {array.dtype}: say where the "
            "image is with field=, or convert it."
        )
    return array


def _is_finite(moments: Moments) -> bool:
    if isinstance(moments, RoundedMoments):
        return all(map(math.isfinite, moments.squares))
    return True  # integers


def _pixels_at(samples: Sequence[Any], path: Path) -> Sequence[_Array]:
    """Return what lies at a path in each sample, as arrays of real numbers."""
    found = [get_field(sample, path) for sample in samples] if path else samples
    # Looked at by loops in C: a call of `as_pixels` for each takes as long as to sum 2,000 pixels.
    if set(map(type, found)) == {np.ndarray}:
        dtypes = list(map(_DTYPE, found))
        if dtypes.count(dtypes[0]) == len(dtypes):
            as_pixels(found[0])
            return found
    return list(map(as_pixels, found))


def _alike(images: Sequence[_Array], masks: Sequence[_Array]) -> Iterator[slice]:
    """Yield runs of images that can be summed together."""
    kinds = list(map(_SHAPE_AND_DTYPE, images))
    if masks:
        kinds = list(zip(kinds, map(_SHAPE_AND_DTYPE, masks), strict=True))
    if kinds.count(kinds[0]) == len(kinds):  # at the speed of C
        yield slice(0, len(kinds))
        return
    start = 0
    for _, run in groupby(kinds):
        end = start + sum(1 for _ in run)
        yield slice(start, end)
        start = end


def _stack(arrays: Sequence[_Array]) -> _Array:
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)
