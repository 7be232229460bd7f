"""Where each image lies in one block of bytes."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["PixelLayout"]

_ALIGNMENT_BYTES = 16


class PixelLayout:
    """Images with axes T, C, Z, Y, X behind one another, each of its own sizes and pixel type."""

    __slots__ = (
        "_content_bytes",
        "_dtype_codes",
        "_dtypes",
        "_offsets",
        "_shapes",
        "_sizes_bytes",
    )

    def __init__(
        self,
        shapes: npt.NDArray[np.int64],
        dtypes: Sequence[np.dtype[np.generic]],
        dtype_codes: npt.NDArray[np.uint8],
    ) -> None:
        """Lay the images out.

        Args:
            shapes: Sizes T, C, Z, Y, X of each image, shape ``(num_images, 5)``, each 1 or more.
            dtypes: The distinct pixel types.
            dtype_codes: Position of each image's pixel type in `dtypes`, shape
                ``(num_images,)``.
        """
        self._shapes = shapes
        self._dtypes = tuple(dtypes)
        self._dtype_codes = dtype_codes
        item_sizes = np.array([dtype.itemsize for dtype in self._dtypes], np.int64)
        sizes = np.asarray(shapes.prod(axis=1) * item_sizes[dtype_codes], np.int64)
        self._content_bytes = sizes
        if len(self._dtypes) > 1:  # no gaps unless types are mixed
            sizes = -(-sizes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._sizes_bytes = sizes
        self._offsets = np.cumsum(sizes) - sizes

    def __reduce__(self) -> tuple[type["PixelLayout"], tuple[object, ...]]:
        return PixelLayout, (self._shapes, self._dtypes, self._dtype_codes)

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def shapes(self) -> npt.NDArray[np.int64]:
        """Sizes T, C, Z, Y, X of each image, shape ``(num_images, 5)``."""
        return self._shapes

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """First byte of each image, shape ``(num_images,)``."""
        return self._offsets

    @property
    def sizes_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes from each image to the next, shape ``(num_images,)``."""
        return self._sizes_bytes

    @property
    def content_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of each image's pixels, without the gap behind them, shape ``(num_images,)``."""
        return self._content_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all images together."""
        return int(self._sizes_bytes.sum())

    @property
    def uniform_dtype(self) -> np.dtype[np.generic] | None:
        """Pixel type if all images are of one shape and type, and there is one at least."""
        is_uniform = len(self) and (self._shapes == self._shapes[0]).all()
        return self._dtypes[0] if is_uniform and len(self._dtypes) == 1 else None

    def dtype(self, position: int) -> np.dtype[np.generic]:
        """Return the pixel type of an image."""
        return self._dtypes[int(self._dtype_codes[position])]

    def digest(self) -> str:
        """Return a hash of all sizes and types."""
        content = hashlib.blake2b(digest_size=16)
        content.update(" ".join(dtype.str for dtype in self._dtypes).encode())
        content.update(np.ascontiguousarray(self._shapes).tobytes())
        content.update(np.ascontiguousarray(self._dtype_codes).tobytes())
        return content.hexdigest()
