"""Scale, shift, gamma and noise: pixels change value, not place."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch

from fastloader.errors import SettingsError
from fastloader.randomness._keyed import Draws
from fastloader.transforms._blocks import COSTLY_PART_VALUES, blocks
from fastloader.transforms._blockwise import BlockwiseTransform, Change
from fastloader.transforms._bounds import Bounds, check_bounds, draw_between
from fastloader.transforms._pixels import as_native, per_image

__all__ = ["GaussianNoise", "RandomGamma", "RandomScale", "RandomShift"]


@dataclass(frozen=True)
class RandomScale(BlockwiseTransform):
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

    def change(self, images: torch.Tensor, draws: Draws) -> Change:
        """Multiply; see `BlockwiseTransform.change`."""
        num = images.shape[1] if self.per_channel else None
        factors = per_image(draw_between(draws, self.factor, num), images)

        def multiply(block: slice, part: torch.Tensor, out: torch.Tensor) -> None:
            _clamped(torch.mul(part, factors[block], out=out), self.clamp)

        return multiply


@dataclass(frozen=True)
class RandomShift(BlockwiseTransform):
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

    def change(self, images: torch.Tensor, draws: Draws) -> Change:
        """Add; see `BlockwiseTransform.change`."""
        num = images.shape[1] if self.per_channel else None
        offsets = per_image(draw_between(draws, self.offset, num), images)

        def add(block: slice, part: torch.Tensor, out: torch.Tensor) -> None:
            _clamped(torch.add(part, offsets[block], out=out), self.clamp)

        return add


@dataclass(frozen=True)
class RandomGamma(BlockwiseTransform):
    """Raise each image to a power within a range of values, whose ends stay where they are.

    With ``t = (image - low) / (high - low)`` the result is ``low + sign(t) * |t| ** gamma *
    (high - low)``. So values outside the range are not cut off, and none become NaN. A gamma
    below 1 makes dark parts brighter. On a GPU powers may differ in the last bit.
    """

    part_values: ClassVar[int | None] = COSTLY_PART_VALUES
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

    def change(self, images: torch.Tensor, draws: Draws) -> Change:
        """Raise to a power; see `BlockwiseTransform.change`."""
        gammas = per_image(draw_between(draws, self.gamma), images)

        def bend(block: slice, part: torch.Tensor, out: torch.Tensor) -> None:
            images, exponents, bent = map(as_native, (part, gammas[block], out))
            for few in blocks(part):
                _bend(images[few], exponents[few], bent[few], self.value_range)
            _clamped(out, self.clamp)

        return bend

    def compiled_change(
        self, kernels: ModuleType, images: torch.Tensor, draws: Draws
    ) -> Change:
        """Raise to a power; see `BlockwiseTransform.compiled_change`."""
        gammas = draw_between(draws, self.gamma).astype(as_native(images).dtype)
        value_range = None if self.value_range is None else tuple(self.value_range)

        def bend(part: slice, images: torch.Tensor, out: torch.Tensor) -> None:
            arrays = out.numpy(), images.numpy(), gammas[part]
            kernels.bend(*arrays, value_range, *_limits(self.clamp), np.log2, np.exp2)

        return bend


@dataclass(frozen=True)
class GaussianNoise(BlockwiseTransform):
    """Add normal noise to each pixel, independently."""

    part_values: ClassVar[int | None] = COSTLY_PART_VALUES
    std: Bounds = (0.0, 0.1)
    """Standard deviation in the unit of the image, or range to draw it from evenly for each
    image; at least 0."""
    clamp: tuple[float, float] | None = None
    """Range that the result is cut off at; None: not at all."""

    def __post_init__(self) -> None:
        check_bounds("std", self.std, lowest=0.0)
        _check_clamp(self.clamp)

    def change(self, images: torch.Tensor, draws: Draws) -> Change:
        """Add noise; see `BlockwiseTransform.change`."""
        std = per_image(draw_between(draws, self.std), images)

        def add_noise(block: slice, part: torch.Tensor, out: torch.Tensor) -> None:
            images, factors, noisy = map(as_native, (part, std[block], out))
            library = _library_of(images)
            for few, numbers in draws.take(block).normal_parts(part):
                noise = as_native(numbers.to(part.dtype))
                noise *= factors[few]
                library.add(noise, images[few], out=noisy[few])
            _clamped(out, self.clamp)

        return add_noise

    def compiled_change(
        self, kernels: ModuleType, images: torch.Tensor, draws: Draws
    ) -> Change:
        """Add noise; see `BlockwiseTransform.compiled_change`."""
        std = draw_between(draws, self.std).astype(as_native(images).dtype)
        keys, quantiles = draws.normal_keys()

        def add_noise(part: slice, images: torch.Tensor, out: torch.Tensor) -> None:
            arrays = out.numpy(), images.numpy(), keys[part], std[part]
            kernels.add_noise(*arrays, quantiles, *_limits(self.clamp))

        return add_noise


def _bend(images: Any, gammas: Any, out: Any, value_range: tuple[float, float] | None) -> None:
    """Write the bent images, tensors or arrays, to `out`: both have the operations used here."""
    library = _library_of(images)
    # As silent as the kernels, where images hold infinity or NaN, and at the logarithm of 0.
    with np.errstate(all="ignore"):
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
    np.log2(values, out=values)
    values *= exponents
    np.exp2(values, out=values)
    values[exponents.reshape(-1) == 0] = 1


def _library_of(values: Any) -> Any:
    return torch if isinstance(values, torch.Tensor) else np


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


def _limits(clamp: tuple[float, float] | None) -> tuple[float, float]:
    return clamp or (-np.inf, np.inf)


def _clamped(values: torch.Tensor, clamp: tuple[float, float] | None) -> torch.Tensor:
    return values if clamp is None else values.clamp_(*clamp)
