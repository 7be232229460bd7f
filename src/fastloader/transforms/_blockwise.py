"""Transforms that compute block by block, in the memory of the images where they may."""

from collections.abc import Callable
from types import ModuleType
from typing import ClassVar, Final, TypeAlias

import torch

from fastloader.randomness._keyed import Draws
from fastloader.tensors._buffers import allocating_scratch
from fastloader.transforms._blocks import PART_VALUES, blocks, num_at_once, work_through
from fastloader.transforms._compiled import kernels_for
from fastloader.transforms._pixels import (
    computing_dtype,
    empty_images,
    write_rounded,
)
from fastloader.transforms._transform import IntensityTransform

__all__ = ["BlockwiseTransform", "Change"]

# Those that the kernels compute with.
_COMPILED: Final = frozenset({
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float32,
    torch.float64,
})

Change: TypeAlias = Callable[[slice, torch.Tensor, torch.Tensor], None]
"""Takes which images of the batch, these, and where to write them changed: the same memory if
the transform works in place, or other memory."""


class BlockwiseTransform(IntensityTransform):
    """An intensity transform whose images are changed a few at a time.

    All numbers are drawn before the first block: to draw for each block would take longer than
    to compute it.
    """

    works_in_place: ClassVar[bool] = True
    block_values: ClassVar[int | None] = None
    """Values of a block of images of another type than that computed with; see `num_at_once`."""
    part_values: ClassVar[int | None] = PART_VALUES
    """Values that are worth a thread; see `work_through`."""

    def new_shape(self, shape: torch.Size) -> tuple[int, ...]:
        """Return the shape of the changed images; to be written where it is another one.

        Args:
            shape: ``(N, C, H, W)``.
        """
        return shape

    def change(self, images: torch.Tensor, draws: Draws) -> Change:
        """Draw the numbers of a batch and return what changes parts of it; the method to write.

        Args:
            images: Some of the images, shape ``(n, C, H, W)``, float32 or float64; only their
                dtype, shape from the second axis on, and device matter.
            draws: Random numbers of the N images.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError(f"{type(self).__name__} must define change(images, draws).")

    def compiled_change(
        self, kernels: ModuleType, images: torch.Tensor, draws: Draws
    ) -> Change | None:
        """Return what does the same as `change` by the kernels in C; None: there are none for it.

        It gets several contiguous images in their own dtype, and rounds and cuts them off itself.

        Args:
            kernels: See `fastloader.transforms._compiled`.
            images: As for `change`.
            draws: Random numbers of the N images.
        """
        del kernels, images, draws
        return None

    def compute(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return the images changed; see `IntensityTransform.compute`."""
        changed = empty_images(self.new_shape(images.shape), images)
        self._write(images, draws, changed)
        return changed

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return the images changed; see `Transform.apply`."""
        if type(self).compute is not BlockwiseTransform.compute:  # somebody's own
            return super().apply(images, draws)
        return self.compute(images, draws)  # writes integers, too

    def apply_in_place(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Change the images where they lie; see `Transform.apply_in_place`."""
        self._write(images, draws, images)
        return images

    def _write(self, images: torch.Tensor, draws: Draws, out: torch.Tensor) -> None:
        if not out.numel():
            return
        dtype = computing_dtype(images.dtype)
        like = images[:0].to(dtype)
        # One image alone is left to NumPy: see docs/explanation/images.md.
        is_fit = len(images) > 1 and images.dtype in _COMPILED
        kernels = kernels_for(images, out) if is_fit else None
        compiled = self.compiled_change(kernels, like, draws) if kernels else None
        change = compiled or self.change(like, draws)

        def write(block: slice) -> None:
            if compiled or images.dtype == dtype:
                change(block, images[block], out[block])
            else:
                self._write_rounded(change, images, block, out)

        work_through(images, write, self.part_values)

    def _write_rounded(
        self, change: Change, images: torch.Tensor, part: slice, out: torch.Tensor
    ) -> None:
        """Change a part of the images of another type."""
        num_images = min(len(images[part]), num_at_once(images, self.block_values))
        like = images[:0].to(computing_dtype(images.dtype))
        with allocating_scratch():
            values = empty_images((num_images, *images.shape[1:]), like)
            changed = values
            if not self.works_in_place:
                changed = empty_images((num_images, *out.shape[1:]), like)
        for block in blocks(images, part, self.block_values):
            some = slice(0, block.stop - block.start)
            change(block, values[some].copy_(images[block]), changed[some])
            write_rounded(changed[some], out[block])
