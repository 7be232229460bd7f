"""Flips, turns and crops: pixels change place, not value."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fastloader.errors import SettingsError, ShapeError
from fastloader.randomness._keyed import Draws
from fastloader.transforms._bounds import (
    check_number,
    check_probability,
    check_size,
    check_whole,
)
from fastloader.transforms._orientation import Ways, reorient
from fastloader.transforms._pixels import as_dtype, as_movable, empty_images
from fastloader.transforms._transform import GeometricTransform
from fastloader.transforms._windows import cut_windows

__all__ = ["RandomCrop", "RandomFlip", "RandomQuarterTurn"]


class _Orientation(GeometricTransform):
    """A transform after which images lie another way round: nothing else of them changes."""

    works_in_place: ClassVar[bool] = True

    def ways(self, shape: torch.Size, draws: Draws) -> Ways:
        """Return which way round each image is to lie; the method to write.

        Args:
            shape: ``(N, C, H, W)``.
            draws: Random numbers of the N images.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError(f"{type(self).__name__} must define ways(shape, draws).")

    def move(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Reorient; see `GeometricTransform.move`."""
        moved = empty_images(images.shape, images)
        reorient(images, self.ways(images.shape, draws), moved)
        return moved

    def apply_in_place(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Reorient images where they lie; see `Transform.apply_in_place`.

        Those that stay as they are, a quarter of them, are not touched.
        """
        bits = as_movable(images)
        reorient(bits, self.ways(images.shape, draws), bits)
        return images


@dataclass(frozen=True)
class RandomFlip(_Orientation):
    """Flip each image left to right, top to bottom, both or not.

    Applied twice with the same key it gives the image back.
    """

    horizontal: float = 0.5
    """Probability that left and right change places."""
    vertical: float = 0.5
    """Probability that top and bottom change places."""

    def __post_init__(self) -> None:
        check_probability("horizontal", self.horizontal)
        check_probability("vertical", self.vertical)

    def ways(self, shape: torch.Size, draws: Draws) -> Ways:
        """Draw which images to flip.

        Args:
            shape: ``(N, C, H, W)``.
            draws: Random numbers of the N images.
        """
        mirrored, upside_down = draws.chance(self.horizontal), draws.chance(self.vertical)
        return Ways(np.zeros(shape[0], np.bool_), upside_down, mirrored)


@dataclass(frozen=True)
class RandomQuarterTurn(_Orientation):
    """Turn each image by a multiple of 90 degrees, counterclockwise."""

    turns: tuple[int, ...] = (0, 1, 2, 3)
    """Numbers of quarter turns to choose from, all equally likely; a number given twice is
    twice as likely. Images that are not square need ``(0, 2)``."""

    def __post_init__(self) -> None:
        is_several = isinstance(self.turns, tuple | list)
        if not is_several or not self.turns or not set(self.turns) <= {0, 1, 2, 3}:
            raise SettingsError(
                f"turns must hold numbers of quarter turns from 0 to 3, but got {self.turns}."
            )

    def ways(self, shape: torch.Size, draws: Draws) -> Ways:
        """Draw by how much to turn each image.

        Args:
            shape: ``(N, C, H, W)``.
            draws: Random numbers of the N images.

        Raises:
            ShapeError: If the images are not square and would not keep their shape.
        """
        height, width = shape[2:]
        if height != width and not {1, 3}.isdisjoint(self.turns):
            raise ShapeError(
                f"Quarter turns need square images, but these are {height} x {width}: crop "
                "them first, or use RandomQuarterTurn(turns=(0, 2)) for half turns."
            )
        turns = np.array(self.turns)[draws.integers(0, len(self.turns))]
        # One turn is rows for columns, then upside down; three are the same and mirrored.
        return Ways(turns % 2 == 1, (turns == 1) | (turns == 2), turns >= 2)


@dataclass(frozen=True)
class RandomCrop(GeometricTransform):
    """Cut a window of one size out of each image, at any position with equal chance."""

    size: int | tuple[int, int]
    """Height and width of the window in pixels; one number for a square."""
    padding: int = 0
    """Pixels added at each side before cutting."""
    fill: float = 0.0
    """Value of the added pixels."""

    def __post_init__(self) -> None:
        check_size("size", self.size)
        check_whole("padding", self.padding, 0)
        check_number("fill", self.fill)

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Pad and cut; see `Transform.apply`."""
        return self._cut(images, draws, self.fill)

    def apply_to_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Cut labels as their images; added pixels have label 0.

        Args:
            labels: Shape ``(N, C, H, W)``, any dtype.
            draws: Random numbers of the N images.
        """
        return self._cut(labels, draws, 0.0)

    def _cut(self, images: torch.Tensor, draws: Draws, fill: float) -> torch.Tensor:
        """Return the windows.

        Raises:
            ShapeError: If the window is larger than the image.
        """
        size = check_size("size", self.size)
        height, width = (length + 2 * self.padding for length in images.shape[2:])
        if size[0] > height or size[1] > width:
            raise ShapeError(
                f"A window of {size[0]} x {size[1]} does not fit in images of {height} x "
                f"{width} (padding included): make size smaller, or padding larger."
            )
        top = draws.integers(0, height - size[0] + 1) - self.padding
        left = draws.integers(0, width - size[1] + 1) - self.padding
        value = as_dtype(torch.tensor(fill, dtype=torch.float64, device="cpu"), images.dtype)
        windows = cut_windows(as_movable(images), top, left, size, as_movable(value))
        return windows.view(images.dtype)
