"""Images of any sizes behind one another in one block of bytes, gathered to batches."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from fastloader.cache._layout import PixelLayout
from fastloader.cache._pixel_bytes import PixelBytes
from fastloader.tensors._gather import gather_rows
from fastloader.threads._crew import share_out

__all__ = ["PackedImages"]

_SMALL_IMAGE_BYTES = 64 << 10
"""Below this, gathering many images at once beats one copy each."""
_GATHER_BYTES = 2 << 20
"""Gathered at once before conversion: stays in the processor's cache, and with one thread."""
_PART_BYTES = 4 << 20
"""Of a batch, for each thread, at least: starting it takes as long."""
_COPIED_ALONE_BYTES = 8 << 20
"""Below this, one thread copies an image as it is."""
_BY_NUMPY = {torch.float32, torch.float64}
"""Types to which NumPy converts as torch does."""


class PackedImages:
    """Images with axes T, C, Z, Y, X, each of its own sizes and pixel type.

    **Processes:** forked children see the same bytes; others as far as the bytes can be
    pickled.
    """

    def __init__(self, layout: PixelLayout, pixels: PixelBytes) -> None:
        """Lay images over bytes.

        Args:
            layout: Where each image lies.
            pixels: The bytes, at least as many as `layout` needs.
        """
        self._layout = layout
        self._pixels = pixels
        self._attach()

    def __getstate__(self) -> dict[str, Any]:
        return {"_layout": self._layout, "_pixels": self._pixels}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._attach()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # pixels do not change once they are there

    def __len__(self) -> int:
        return len(self._layout)

    @property
    def layout(self) -> PixelLayout:
        """Where each image lies."""
        return self._layout

    @property
    def pixels(self) -> PixelBytes:
        """The bytes of all images."""
        return self._pixels

    @property
    def block(self) -> npt.NDArray[np.uint8]:
        """View of the bytes of all images, not to write to."""
        return self._block

    @property
    def uniform(self) -> torch.Tensor | None:
        """View of all images, shape ``(N, pixels of an image)``; None if they are not alike."""
        return self._uniform

    def image(self, position: int) -> torch.Tensor:
        """Return an image in its own type, shape ``(T, C, Z, Y, X)``; a view, not to write to."""
        layout = self._layout
        shape = tuple(layout.shapes[position].tolist())
        array = np.frombuffer(
            self._block,
            layout.dtype(position),
            int(np.prod(shape)),
            int(layout.offsets[position]),
        )
        return torch.from_numpy(array.reshape(shape))

    def gather(
        self,
        positions: Sequence[int] | npt.NDArray[np.int64],
        out: torch.Tensor,
        scale: float | None = None,
    ) -> None:
        """Copy images into a batch, converting pixel by pixel to its dtype.

        Args:
            positions: Which images, any order, repeats allowed; all of the shape of a sample
                of `out`.
            out: Batch to write to, shape ``(len(positions), T, C, Z, Y, X)``, any strides.
            scale: Factor for each pixel after conversion to a floating type.
        """
        num_parts = min(torch.get_num_threads(), out.nbytes // _PART_BYTES, len(positions)) or 1
        if self._uniform is None or not out.is_contiguous() or self._is_large():

            def convert_images(start: int, stop: int) -> None:
                for at in range(start, stop):
                    _convert(self.image(positions[at]), out[at], scale)

            share_out(len(positions), num_parts, convert_images)
            return
        index = np.asarray(positions, np.int64)
        rows = out.view(len(positions), -1)
        if out.dtype == self._uniform.dtype and scale is None:
            gather_rows(self._uniform, index, rows)
            return
        uniform = self._uniform
        num_at_once = max(1, _GATHER_BYTES // (uniform[0].nbytes or 1))

        def convert_rows(start: int, stop: int) -> None:
            size = min(num_at_once, stop - start)
            gathered = torch.empty((size, uniform.shape[1]), dtype=uniform.dtype, device="cpu")
            for first in range(start, stop, num_at_once):
                part = index[first : min(first + num_at_once, stop)]
                chosen = gather_rows(uniform, part, gathered[: len(part)])
                _convert(chosen, rows[first : first + len(part)], scale)

        share_out(len(positions), num_parts, convert_rows)

    def _is_large(self) -> bool:
        return self._uniform is not None and self._uniform[:1].nbytes >= _SMALL_IMAGE_BYTES

    def _attach(self) -> None:
        """View the bytes, as rows of one matrix if all images are of one shape and type."""
        self._block = self._pixels.view()[: self._layout.num_bytes]
        dtype = self._layout.uniform_dtype
        self._uniform: torch.Tensor | None = None
        if dtype is not None:
            self._uniform = torch.from_numpy(self._block.view(dtype).reshape(len(self), -1))


def _convert(source: torch.Tensor, target: torch.Tensor, scale: float | None) -> None:
    is_small_copy = (
        scale is None and target.dtype == source.dtype and target.nbytes < _COPIED_ALONE_BYTES
    )
    if target.dtype in _BY_NUMPY or is_small_copy:
        # In this thread: torch's spin while they wait for each other, and where a core is taken
        # by somebody else an image of a megabyte then takes 4 ms in place of 0.05.
        pixels = target.numpy()
        np.copyto(pixels, source.numpy(), casting="unsafe")
        if scale is not None:
            np.multiply(pixels, pixels.dtype.type(scale), out=pixels)
    elif scale is None:
        target.copy_(source)
    elif target.dtype in {torch.float16, torch.bfloat16}:
        # Large pixel values overflow half precision before they are scaled down.
        target.copy_(source.to(torch.float32).mul_(scale))
    else:
        target.copy_(source).mul_(scale)
