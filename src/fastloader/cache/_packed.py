"""Images of any sizes behind one another in one block of memory, which processes share."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from fastloader.shm import MemoryFile, MemoryWriter

__all__ = ["PackedImages"]

_ALIGNMENT_BYTES = 16
_SMALL_IMAGE_BYTES = 64 << 10
"""Below this, gathering many images at once beats one copy each."""
_GATHER_BYTES = 2 << 20
"""Gathered at once before conversion: stays in the processor's cache."""


class PackedImages:
    """Images with axes T, C, Z, Y, X, each of its own sizes and pixel type.

    **Processes:** forked children see the same memory. So do children of other kinds if the
    images are shared and get pickled while the child is being started
    (`fastloader.shm.can_send_memory_files`). The memory is given back when the last process
    has dropped its object.
    """

    def __init__(
        self,
        shapes: npt.NDArray[np.int64],
        dtypes: Sequence[np.dtype[np.generic]],
        dtype_codes: npt.NDArray[np.uint8],
        *,
        shared: bool,
    ) -> None:
        """Reserve memory, all zeros, which is taken when it is written to.

        Args:
            shapes: Sizes T, C, Z, Y, X of each image, shape ``(num_images, 5)``, each 1 or more.
            dtypes: The distinct pixel types.
            dtype_codes: Position of each image's pixel type in `dtypes`, shape
                ``(num_images,)``.
            shared: Reserve memory that children started by spawn or forkserver can map.

        Raises:
            SharedMemoryError: If `shared` and the system has no such memory.
        """
        self._shapes = shapes
        self._dtypes = tuple(dtypes)
        self._dtype_codes = dtype_codes
        num_bytes = self.count_bytes(shapes, dtypes, dtype_codes)
        self._file = MemoryFile.create(max(1, num_bytes)) if shared else None
        self._attach(num_bytes)

    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        del state["_uniform"]
        if self._file is not None:
            del state["_block"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._attach(self.count_bytes(self._shapes, self._dtypes, self._dtype_codes))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # nobody writes once the images are there

    def __len__(self) -> int:
        return len(self._shapes)

    @staticmethod
    def count_bytes(
        shapes: npt.NDArray[np.int64],
        dtypes: Sequence[np.dtype[np.generic]],
        dtype_codes: npt.NDArray[np.uint8],
    ) -> int:
        """Return how much memory such images take, in bytes; arguments as for the class."""
        sizes = _sizes_bytes(shapes, dtypes, dtype_codes)
        return int(sizes.sum())

    def write(self, offset_bytes: int, pixels: npt.NDArray[Any]) -> None:
        """Put pixels in their place; for the process that made this object.

        Args:
            offset_bytes: Position of the first, counted as in `offsets`.
            pixels: Of an image's own type, contiguous.
        """
        if self._file is not None:
            self._file.write(offset_bytes, pixels.reshape(-1).view(np.uint8).data)
        else:
            target = self._block[offset_bytes : offset_bytes + pixels.nbytes]
            target[...] = pixels.reshape(-1).view(np.uint8)

    @property
    def writer(self) -> MemoryWriter | Callable[[int, npt.NDArray[Any]], None]:
        """What puts pixels in their place: `write`, or the same on a file that can be shared."""
        return self.write if self._file is None else MemoryWriter(self._file)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """First byte of each image, shape ``(num_images,)``."""
        return self._offsets

    @property
    def shapes(self) -> npt.NDArray[np.int64]:
        """Sizes T, C, Z, Y, X of each image, shape ``(num_images, 5)``."""
        return self._shapes

    def image(self, position: int) -> torch.Tensor:
        """Return an image in its own type, shape ``(T, C, Z, Y, X)``; a view, not to write to."""
        shape = tuple(self._shapes[position].tolist())
        dtype = self._dtypes[self._dtype_codes[position]]
        array = np.frombuffer(
            self._block, dtype, int(np.prod(shape)), int(self._offsets[position])
        )
        return torch.from_numpy(array.reshape(shape))

    def gather(
        self, positions: Sequence[int], out: torch.Tensor, scale: float | None = None
    ) -> None:
        """Copy images into a batch, converting pixel by pixel to its dtype.

        Args:
            positions: Which images, any order, repeats allowed; all of the shape of a sample
                of `out`.
            out: Batch to write to, shape ``(len(positions), T, C, Z, Y, X)``, any strides.
            scale: Factor for each pixel after conversion to a floating type.
        """
        if self._uniform is None or not out.is_contiguous() or self._is_large():
            for sample, position in zip(out, positions, strict=True):
                _convert(self.image(position), sample, scale)
            return
        index = torch.as_tensor(positions, dtype=torch.int64)
        rows = out.view(len(positions), -1)
        if out.dtype == self._uniform.dtype and scale is None:
            torch.index_select(self._uniform, 0, index, out=rows)
            return
        num_at_once = max(1, _GATHER_BYTES // (self._uniform[0].nbytes or 1))
        for start in range(0, len(positions), num_at_once):
            part = slice(start, start + num_at_once)
            _convert(torch.index_select(self._uniform, 0, index[part]), rows[part], scale)

    def _is_large(self) -> bool:
        return self._uniform is not None and self._uniform[:1].nbytes >= _SMALL_IMAGE_BYTES

    def _attach(self, num_bytes: int) -> None:
        """Map the memory and note where each image lies in it."""
        sizes = _sizes_bytes(self._shapes, self._dtypes, self._dtype_codes)
        self._offsets = np.cumsum(sizes) - sizes
        if self._file is not None:
            self._block = np.frombuffer(self._file.map(), np.uint8, num_bytes)
        elif not hasattr(self, "_block"):
            self._block = np.zeros(num_bytes, np.uint8)
        self._uniform = self._view_uniform()

    def _view_uniform(self) -> torch.Tensor | None:
        """Return all images as rows of one matrix if they are of one shape and type."""
        is_uniform = len(self) and (self._shapes == self._shapes[0]).all()
        if not is_uniform or len(self._dtypes) != 1:
            return None
        return torch.from_numpy(self._block.view(self._dtypes[0]).reshape(len(self), -1))


def _sizes_bytes(
    shapes: npt.NDArray[np.int64],
    dtypes: Sequence[np.dtype[np.generic]],
    dtype_codes: npt.NDArray[np.uint8],
) -> npt.NDArray[np.int64]:
    """Return the bytes from each image to the next: no gaps unless types are mixed."""
    item_sizes = np.array([dtype.itemsize for dtype in dtypes], np.int64)
    sizes = shapes.prod(axis=1) * item_sizes[dtype_codes]
    if len(dtypes) > 1:
        sizes = -(-sizes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return np.asarray(sizes, np.int64)


def _convert(source: torch.Tensor, target: torch.Tensor, scale: float | None) -> None:
    if scale is None:
        target.copy_(source)
    elif target.dtype in {torch.float16, torch.bfloat16}:
        # Large pixel values overflow half precision before they are scaled down.
        target.copy_(source.to(torch.float32).mul_(scale))
    else:
        target.copy_(source).mul_(scale)
