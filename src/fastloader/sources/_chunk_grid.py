"""Where each chunk of a table belongs, checked to cover every image once."""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.errors import ImageDataError

__all__ = ["ChunkGrid"]

Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChunkGrid:
    """Chunks of a regular grid over each image, in the order of the table."""

    image: Integers
    """Row number of each chunk's image, shape ``(num_chunks,)``; -1 for none that is known."""
    origin: Integers
    """First element on T, C, Z, Y, X, shape ``(num_chunks, 5)``."""
    shape: Integers
    """Sizes on the same axes, shape ``(num_chunks, 5)``."""
    num_images: int

    @classmethod
    def checked(
        cls,
        image: Integers,
        origin: Integers,
        shape: Integers,
        image_shapes: Integers,
        chunk_shapes: Integers,
        where: str,
    ) -> "ChunkGrid":
        """Take the places of chunks.

        Args:
            image: As the field.
            origin: As the field.
            shape: As the field.
            image_shapes: Sizes of each image, shape ``(num_images, 5)``.
            chunk_shapes: Sizes of the chunks of each image that are not at its end, shape
                ``(num_images, 5)``.
            where: Folder, for error messages.

        Raises:
            ImageDataError: If the chunks of an image do not cover it once.
        """
        grid = cls(image, origin, shape, len(image_shapes))
        at = np.flatnonzero(image >= 0)
        whole, step = image_shapes[image[at]], np.maximum(1, chunk_shapes[image[at]])
        expected = np.minimum(step, whole - origin[at])
        is_wrong = (
            (origin[at] < 0)
            | (origin[at] >= whole)
            | (origin[at] % step != 0)
            | (shape[at] != expected)
        ).any(axis=1)
        if is_wrong.any():
            number = int(at[np.argmax(is_wrong)])
            raise ImageDataError(
                f"{where}, chunk {number}: origin {origin[number].tolist()} and shape "
                f"{shape[number].tolist()} are not in the grid of image {int(image[number])} of "
                f"{image_shapes[image[number]].tolist()}."
            )
        counts = -(-image_shapes // np.maximum(1, chunk_shapes))
        place = np.concatenate([image[at, None], origin[at] // step], axis=1)
        num_distinct = np.bincount(np.unique(place, axis=0)[:, 0], minlength=len(image_shapes))
        found = np.bincount(image[at], minlength=len(image_shapes))
        is_wrong = (num_distinct != counts.prod(axis=1)) | (found != num_distinct)
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            raise ImageDataError(
                f"{where}, image {row}: expected {int(counts[row].prod())} chunks, each once, but "
                f"got {int(found[row])}, of which {int(num_distinct[row])} differ."
            )
        return grid

    @property
    def num_pixels(self) -> Integers:
        """Elements of each chunk, shape ``(num_chunks,)``."""
        return np.asarray(self.shape.prod(axis=1), np.int64)

    def num_chunks(self, row: int) -> int:
        """Return how many chunks an image has."""
        return int(self._starts[row + 1] - self._starts[row])

    def chunks_of(self, rows: Integers) -> Integers:
        """Return the numbers of all chunks of some images, ascending.

        Args:
            rows: Row numbers of the images.
        """
        parts = [
            self._order[self._starts[row] : self._starts[row + 1]] for row in rows.tolist()
        ]
        return np.sort(np.concatenate(parts))

    @cached_property
    def _order(self) -> Integers:
        """Numbers of the chunks, those of an image together."""
        return np.argsort(self.image, kind="stable")

    @cached_property
    def _starts(self) -> Integers:
        """Where the chunks of each image start in `_order`, and last where they end."""
        edges = np.arange(self.num_images + 1)
        return np.searchsorted(self.image[self._order], edges, "left")
