"""Scale, shift, gamma and noise: pixels change value, not place."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloader._keyed import Draws
from fastloader.errors import SettingsError
from fastloader.transforms._blocks import blocks
from fastloader.transforms._bounds import Bounds, check_bounds, draw_between
from fastloader.transforms._pixels import as_native, empty_images, per_image
from fastloader.transforms._transform import IntensityTransform

__all__ = ["GaussianNoise", "RandomGamma", "RandomScale", "RandomShift"]


@dataclass(frozen=True)
class RandomScale(IntensityTransform):
    """Multiply each image, or each of its channels, by a factor."""

    factor: Bounds = (0.8, 1.25)
    """Factor, or range to draw it from evenly."""
    per_channel: bool = False
    """Whether each channel gets a factor of its own."""
    clamp: tuple[float, float] | None = None
    """Range that the result is cut off at; None: not at all."""

    def __post_init__(self) -> None:
        check_bounds("factor", self.factor)
        _check_clamp(self.clamp)

    def compute(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Multiply; see `IntensityTransform.compute`.

        Args:
            images: Shape ``(N, C, H, W)``.
            draws: Random numbers of the N images.
        """
        factors = draw_between(
            draws, self.factor, images.shape[1] if self.per_channel else None
        )
        scaled = empty_images(images.shape, images)
        return _clamped(torch.mul(images, per_image(factors, images), out=scaled), self.clamp)


@dataclass(frozen=True)
class RandomShift(IntensityTransform):
    """Add an offset to each image, or to each of its channels."""

    offset: Bounds = (-0.1, 0.1)
    """Offset in the unit of the image, or range to draw it from evenly."""
    per_channel: bool = False
    """Whether each channel gets an offset of its own."""
    clamp: tuple[float, float] | None = None
    """Range that the result is cut off at; None: not at all."""

    def __post_init__(self) -> None:
        check_bounds("offset", self.offset)
        _check_clamp(self.clamp)

    def compute(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Add; see `IntensityTransform.compute`.

        Args:
            images: Shape ``(N, C, H, W)``.
            draws: Random numbers of the N images.
        """
        offsets = draw_between(
            draws, self.offset, images.shape[1] if self.per_channel else None
        )
        shifted = empty_images(images.shape, images)
        return _clamped(torch.add(images, per_image(offsets, images), out=shifted), self.clamp)


@dataclass(frozen=True)
class RandomGamma(IntensityTransform):
    """Raise each image to a power within a range of values, whose ends stay where they are.

    With ``t = (image - low) / (high - low)`` the result is ``low + sign(t) * |t| ** gamma *
    (high - low)``. So values outside the range are not cut off, and none become NaN. A gamma
    below 1 makes dark parts brighter. On a GPU powers may differ in the last bit.
    """

    gamma: Bounds = (0.7, 1.5)
    """Exponent, or range to draw it from evenly; at least 0."""
    value_range: tuple[float, float] | None = None
    """The values (low, high) that stay as they are; None: the least and greatest of each
    image, over all channels."""
    clamp: tuple[float, float] | None = None
    """Range that the result is cut off at; None: not at all."""

    def __post_init__(self) -> None:
        check_bounds("gamma", self.gamma, lowest=0.0)
        if self.value_range is not None:
            check_bounds("value_range", self.value_range)
        _check_clamp(self.clamp)

    def compute(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Raise to a power; see `IntensityTransform.compute`.

        Args:
            images: Shape ``(N, C, H, W)``.
            draws: Random numbers of the N images.
        """
        gammas = per_image(draw_between(draws, self.gamma), images)
        changed = empty_images(images.shape, images)
        for block in blocks(images):
            _bend(
                as_native(images[block]),
                as_native(gammas[block]),
                as_native(changed[block]),
                self.value_range,
            )
        return _clamped(changed, self.clamp)


@dataclass(frozen=True)
class GaussianNoise(IntensityTransform):
    """Add normal noise to each pixel, independently."""

    std: Bounds = (0.0, 0.1)
    """Standard deviation in the unit of the image, or range to draw it from evenly for each
    image; at least 0."""
    clamp: tuple[float, float] | None = None
    """Range that the result is cut off at; None: not at all."""

    def __post_init__(self) -> None:
        check_bounds("std", self.std, lowest=0.0)
        _check_clamp(self.clamp)

    def compute(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Add noise; see `IntensityTransform.compute`.

        Args:
            images: Shape ``(N, C, H, W)``.
            draws: Random numbers of the N images.
        """
        std = per_image(draw_between(draws, self.std), images)
        noisy = empty_images(images.shape, images)
        for block in blocks(images):
            draws.take(block).normal_like(images[block], out=noisy[block])
            out = as_native(noisy[block])
            out *= as_native(std[block])
            out += as_native(images[block])
        return _clamped(noisy, self.clamp)


def _bend(images: Any, gammas: Any, out: Any, value_range: tuple[float, float] | None) -> None:
    """Write the bent images, tensors or arrays, to `out`: both have the operations used here."""
    library = torch if isinstance(images, torch.Tensor) else np
    if value_range is None:
        planes = images.reshape(len(images), -1)
        low = library.amin(planes, 1).reshape(-1, 1, 1, 1)
        extent = library.amax(planes, 1).reshape(-1, 1, 1, 1) - low
        # A constant image has no extent; it stays as it is with any other one.
        extent[extent == 0] = 1
    else:
        low, extent = value_range[0], value_range[1] - value_range[0] or 1.0
    library.subtract(images, low, out=out)
    out /= extent
    if value_range is None:  # nothing lies below the range
        _raise(out, gammas)
    else:
        magnitudes = abs(out)
        _raise(magnitudes, gammas)
        library.copysign(magnitudes, out, out=out)
    out *= extent
    out += low


def _raise(values: Any, exponents: Any) -> None:
    """Raise numbers of at least 0 to a power, in place."""
    if isinstance(values, torch.Tensor):
        values.pow_(exponents)
        return
    # The last bit of a power depends on where in the array it is computed (torch), or on the
    # strides of the exponent (NumPy). That of NumPy's logarithm does not, and both ways are
    # exact at 0 and 1.
    with np.errstate(divide="ignore", invalid="ignore"):  # the logarithm of 0, times 0
        np.log2(values, out=values)
        values *= exponents
    np.exp2(values, out=values)
    values[exponents.reshape(-1) == 0] = 1


def _check_clamp(clamp: tuple[float, float] | None) -> None:
    """Check a range to cut off at.

    Raises:
        SettingsError: If it is no ascending pair.
    """
    if clamp is None:
        return
    if not isinstance(clamp, tuple | list):
        raise SettingsError(f"clamp must be a pair (low, high) or None, but got {clamp!r}.")
    check_bounds("clamp", clamp)


def _clamped(values: torch.Tensor, clamp: tuple[float, float] | None) -> torch.Tensor:
    return values if clamp is None else values.clamp_(*clamp)
