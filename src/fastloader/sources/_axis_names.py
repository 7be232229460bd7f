"""Brings arrays whose axes have names into the order T, C, Z, Y, X."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.errors import ImageDataError

__all__ = ["STORED_AXES", "AxisOrder", "StackAxis"]

STORED_AXES = "TCZYX"

StackAxis: TypeAlias = Literal["T", "C", "Z"]
"""What the pages of a file are that does not say so."""

_SAMPLES = "S"
_UNNAMED = "QI"


@dataclass(frozen=True, slots=True)
class AxisOrder:
    """How an array of any named axes becomes one of T, C, Z, Y, X."""

    stored_shape: tuple[int, ...]
    """Sizes of the array as it is stored."""
    permutation: tuple[int, ...]
    """Stored axes in the order in which they make up T, C, Z, Y, X."""
    shape: tuple[int, int, int, int, int]
    """Sizes T, C, Z, Y, X, each 1 or more."""
    channel_axis: int | None
    """Which stored axis the channels are; None without, or where samples join them."""

    @classmethod
    def of(
        cls, axes: str, shape: Sequence[int], where: str, stack_axis: StackAxis | None = None
    ) -> "AxisOrder":
        """Find the order.

        Args:
            axes: A letter for each axis: T, C, Z, Y, X; S for the samples of a pixel, which
                join the channels; Q or I for pages without a name; others only of size 1.
            shape: Size of each axis.
            where: File, for error messages.
            stack_axis: What an axis without a name is.

        Raises:
            ImageDataError: If an axis has no place, or the image no pixels.
        """
        if len(axes) != len(shape) or min(shape, default=0) < 1:
            raise ImageDataError(
                f"{where}: expected axes of 1 or more, but got axes {axes!r} of sizes "
                f"{tuple(shape)}."
            )
        places: dict[str, list[int]] = {name: [] for name in STORED_AXES}
        dropped = []
        for position, (name, size) in enumerate(zip(axes.upper(), shape, strict=True)):
            place = _place_of(name, stack_axis)
            if place in places and (not places[place] or name == _SAMPLES):
                places[place].append(position)
            elif size == 1:
                dropped.append(position)
            else:
                raise ImageDataError(_no_place(name, size, axes, shape, where))
        if not places["Y"] or not places["X"]:
            raise ImageDataError(f"{where}: expected axes Y and X, but got {axes!r}.")
        sizes = [
            math.prod(int(shape[position]) for position in places[name]) for name in STORED_AXES
        ]
        kept = [position for name in STORED_AXES for position in places[name]]
        return cls(
            tuple(int(size) for size in shape),
            (*dropped, *kept),
            (sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]),
            places["C"][0] if len(places["C"]) == 1 else None,
        )

    @property
    def is_in_order(self) -> bool:
        """True if the bytes of the stored array are those of T, C, Z, Y, X."""
        moved = [axis for axis in self.permutation if self.stored_shape[axis] > 1]
        return moved == sorted(moved)

    def arrange(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a stored array with the axes T, C, Z, Y, X: a view where it can be.

        Args:
            stored: Of `stored_shape`.
        """
        return stored.transpose(self.permutation).reshape(self.shape)

    def as_stored(
        self, image: npt.NDArray[Any], num_channels: int | None = None
    ) -> npt.NDArray[Any]:
        """Return an image as a view with the axes of the stored array.

        Args:
            image: With the axes T, C, Z, Y, X, any strides.
            num_channels: Channels of the image, if not all.
        """
        sizes = list(self.stored_shape)
        if num_channels is not None and self.channel_axis is not None:
            sizes[self.channel_axis] = num_channels
        split = image.reshape([sizes[axis] for axis in self.permutation])
        return split.transpose(np.argsort(self.permutation))


def _place_of(name: str, stack_axis: StackAxis | None) -> str:
    if name == _SAMPLES:
        return "C"
    if name in _UNNAMED and stack_axis is not None:
        return stack_axis
    return name


def _no_place(name: str, size: int, axes: str, shape: Sequence[int], where: str) -> str:
    told = f"{where}: its axes {axes!r} have sizes {tuple(shape)}"
    unnamed = [
        letter
        for letter, length in zip(axes.upper(), shape, strict=True)
        if letter in _UNNAMED and length > 1
    ]
    free = [repr(axis) for axis in "TCZ" if axis not in axes.upper()]
    if len(unnamed) > 1:
        return (
            f"{told}: {len(unnamed)} of them have no name, and stack_axis names one alone. Write the "
            f"file with names for all, as by tifffile.imwrite(..., metadata={{'axes': 'ZCYX'}})."
        )
    if name in _UNNAMED and free:
        return (
            f"{told}, and nothing says what the {size} pages are: say so with stack_axis="
            f"{' or '.join(free)}."
        )
    return f"{told}, and there is no place for {name!r} of size {size} among {STORED_AXES}."
