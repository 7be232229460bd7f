"""Images in their own type, as a device keeps them, and how a batch is made of them there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.datasets._axes import as_samples, as_stored, sample_shape
from fastloader.datasets._image_store import ImageStore
from fastloader.datasets._label_choice import LabelDict
from fastloader.datasets._labels import Labels
from fastloader.errors import ShapeError
from fastloader.inspection._fingerprint import OwnFingerprint
from fastloader.tensors._buffers import empty_batch

__all__ = ["StoredImages", "gather_images"]


class StoredImages(OwnFingerprint):
    """The samples of an image dataset before conversion: 16-bit pixels take half of float32's."""

    def __init__(
        self,
        images: ImageStore,
        labels: Labels | LabelDict | None,
        axes: str,
        dtype: torch.dtype,
    ) -> None:
        """Take the samples.

        Args:
            images: Their pixels, all of one shape.
            labels: Their labels, if any.
            axes: Axes of a sample.
            dtype: Type that holds all pixels.
        """
        self._images = images
        self._labels = labels
        self._axes = axes
        self._dtype = dtype

    makes_new_batches = True

    def own_fingerprint(self) -> None:
        """Return nothing: pixels and labels stay, whatever their store learns of its files."""

    def __len__(self) -> int:
        return len(self._images)

    def get_batch(self, indices: Sequence[int]) -> Any:
        """Return samples as one batch: images, or the list [images, labels].

        Args:
            indices: Positions from 0, at least one.
        """
        positions = np.asarray(indices, np.int64)
        batch = gather_images(self._images, positions, self._axes, self._dtype, None)
        return batch if self._labels is None else [batch, self._labels.batch(positions)]

    def batch_in_memory(self) -> Any:
        """Return all samples as one batch, views of what is kept; None if they must be read."""
        stored = self._images.in_memory()
        if stored is None or stored.dtype != self._dtype:
            return None
        images = as_samples(stored, self._axes)
        every = np.arange(len(images))
        return images if self._labels is None else [images, self._labels.batch(every)]


def gather_images(
    images: ImageStore,
    positions: npt.NDArray[np.int64],
    axes: str,
    dtype: torch.dtype,
    scale: float | None,
) -> torch.Tensor:
    """Return images as a batch.

    Args:
        images: The images.
        positions: Which of them, any order, repeats allowed; at least one, shape ``(B,)``.
        axes: Axes of a sample.
        dtype: Type of the batch.
        scale: Factor for each pixel after conversion to a floating type.

    Raises:
        ShapeError: If they are of different shapes.
    """
    shape = images.common_shape
    if shape is None:
        shape = _shape_of_all(images.shapes[positions], positions, axes)
    batch = empty_batch((len(positions), *sample_shape(shape, axes)), dtype)
    images.gather(positions, as_stored(batch, axes), scale)
    return batch


def _shape_of_all(
    shapes: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], axes: str
) -> npt.NDArray[np.int64]:
    """Return the shape that images have.

    Raises:
        ShapeError: If they have several.
    """
    first: npt.NDArray[np.int64] = shapes[0]
    if (shapes != first).any():
        whose: dict[tuple[int, ...], int] = {}
        for shape, position in zip(shapes, positions.tolist(), strict=True):
            whose.setdefault(sample_shape(shape, axes), position)
        sizes = ", ".join(f"{size} (image {whose[size]})" for size in sorted(whose))
        raise ShapeError(
            f"Images of {len(whose)} shapes cannot be one batch: {sizes}, axes {axes}. Bring "
            f"them to one with transform=, batch images of one size together "
            f"(`dataset.shapes`), or give the loader a collate_fn."
        )
    return first
