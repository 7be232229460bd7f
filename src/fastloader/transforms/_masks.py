"""Masked pixels: whole channels, or square holes."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader.randomness._keyed import Draws
from fastloader.transforms._blocks import work_through
from fastloader.transforms._bounds import check_probability, check_size, check_whole
from fastloader.transforms._pixels import Fill, as_movable, check_fill, empty_images, fill_value
from fastloader.transforms._transform import Transform

__all__ = ["ChannelDrop", "Cutout", "MaskTransform", "within"]


@dataclass(frozen=True)
class MaskTransform(Transform):
    """A transform that puts a value in place of some pixels; any dtype, labels stay."""

    works_in_place: ClassVar[bool] = True
    _: KW_ONLY
    fill: Fill = 0.0
    """What the masked pixels become: a number, or ``"mean"``: the mean of their channel in
    that image before masking."""

    def mask(self, shape: torch.Size, draws: Draws) -> NDArray[np.bool_]:
        """Return which pixels are masked; the method to write.

        Args:
            shape: ``(N, C, H, W)``.
            draws: Random numbers of the N images.

        Returns:
            bool array that broadcasts to `shape`.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError(f"{type(self).__name__} must define mask(shape, draws).")

    def __post_init__(self) -> None:
        check_fill(self.fill)

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Mask; see `Transform.apply`."""
        masked = empty_images(images.shape, images)
        self._write(images, draws, masked)
        return masked

    def apply_in_place(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Mask pixels where they lie; see `Transform.apply_in_place`."""
        self._write(images, draws, images)
        return images

    def _write(self, images: torch.Tensor, draws: Draws, out: torch.Tensor) -> None:
        mask = self.mask(images.shape, draws)
        of_images = np.broadcast_to(mask, (len(images), *mask.shape[1:]))

        def write(block: slice) -> None:
            fill = fill_value(images[block], self.fill)
            bits, out_bits = as_movable(images[block]), as_movable(out[block])
            if images.device.type != "cpu":
                chosen = torch.from_numpy(mask).to(images.device)
                torch.where(chosen, fill, bits, out=out_bits)
                return
            # Few pixels are masked: a plain copy and then only these takes half the time.
            if out is not images:
                out_bits.copy_(bits)
            np.copyto(out_bits.numpy(), fill.numpy(), where=of_images[block])

        work_through(images, write)


@dataclass(frozen=True)
class ChannelDrop(MaskTransform):
    """Blank channels, each with the same probability, as if the stain had failed."""

    probability: float = 0.1
    """Probability that a channel is dropped."""
    keep_one: bool = True
    """Whether one channel, any of them, stays where all would be dropped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("probability", self.probability)

    def mask(self, shape: torch.Size, draws: Draws) -> NDArray[np.bool_]:
        """Mask channels; see `MaskTransform.mask`."""
        dropped = draws.chance(self.probability, shape[1])
        survivor = draws.integers(0, shape[1])
        if self.keep_one and shape[1]:
            empty = np.flatnonzero(dropped.all(axis=1))
            dropped[empty, survivor[empty]] = False
        return dropped[:, :, None, None]


@dataclass(frozen=True)
class Cutout(MaskTransform):
    """Mask rectangles, in all channels.

    As in T. DeVries and G. W. Taylor, "Improved regularization of convolutional neural
    networks with Cutout" (2017, arXiv:1708.04552), the centre is any pixel with equal chance,
    so that part of a hole may lie outside the image.
    """

    size: int | tuple[int, int] = 16
    """Height and width of a hole in pixels; one number for a square."""
    num_holes: int = 1
    """Holes in each image; they may overlap."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("size", self.size)
        check_whole("num_holes", self.num_holes, 1)

    def mask(self, shape: torch.Size, draws: Draws) -> NDArray[np.bool_]:
        """Mask rectangles; see `MaskTransform.mask`."""
        height, width = check_size("size", self.size)
        top = draws.integers(0, shape[2], self.num_holes) - height // 2
        left = draws.integers(0, shape[3], self.num_holes) - width // 2
        rows = within(top, top + height, shape[2])[:, :, :, None]
        columns = within(left, left + width, shape[3])[:, :, None, :]
        return np.asarray(np.any(rows & columns, axis=1, keepdims=True))


def within(first: NDArray[np.int64], end: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    """Return which of `size` positions lie in each interval.

    Args:
        first: First position of each interval, any shape.
        end: One more than the last, the same shape.
        size: Length of the axis.

    Returns:
        bool, the shape of `first` and one axis of length `size`.
    """
    positions = np.arange(size)
    return np.asarray((positions >= first[..., None]) & (positions < end[..., None]))
