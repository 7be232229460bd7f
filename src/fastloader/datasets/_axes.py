"""Which axes of an image a sample has, and in which order."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.errors import ShapeError

__all__ = ["STORED_AXES", "as_samples", "as_stored", "choose_axes", "sample_shape"]

STORED_AXES = "TCZYX"


def choose_axes(axes: Any, shapes: npt.NDArray[np.int64], where: str) -> str:
    """Return the axes of a sample: as asked for, or C, Y, X if the others are of size 1.

    Args:
        axes: Any order of a part of ``"TCZYX"``, or None to choose.
        shapes: Sizes T, C, Z, Y, X of all images, shape ``(num_images, 5)``.
        where: File and column, for error messages.

    Raises:
        ShapeError: If `axes` is no such text, or leaves out an axis of another size than 1.
    """
    chosen = "CYX" if axes is None else axes
    letters = set(chosen) if isinstance(chosen, str) else set()
    if not letters or len(letters) != len(chosen) or not letters <= set(STORED_AXES):
        raise ShapeError(
            f"axes={axes!r}: expected each letter of 'TCZYX' at most once, for instance 'CYX'."
        )
    for position, axis in enumerate(STORED_AXES):
        sizes = shapes[:, position]
        if axis not in chosen and (sizes != 1).any():
            row = int(np.argmax(sizes != 1))
            needed = "".join(a for a in STORED_AXES if a in chosen or a == axis)
            raise ShapeError(
                f"{where}: axis {axis} is left out of axes={chosen!r}, but image {row} has size "
                f"{int(sizes[row])} along it (T, C, Z, Y, X = {shapes[row].tolist()}): keep it "
                f"with axes={needed!r} or 'TCZYX'."
            )
    return chosen


def sample_shape(shape: npt.NDArray[np.int64], axes: str) -> tuple[int, ...]:
    """Return the shape of a sample.

    Args:
        shape: Sizes T, C, Z, Y, X of the image.
        axes: Axes of the sample, as `choose_axes` gives them.
    """
    return tuple(int(shape[STORED_AXES.index(axis)]) for axis in axes)


def as_stored(batch: torch.Tensor, axes: str) -> torch.Tensor:
    """Return a view of a batch with axes N, T, C, Z, Y, X.

    Args:
        batch: Any values, first axis N, then `axes`.
        axes: Axes of a sample, as `choose_axes` gives them.
    """
    present = [axis for axis in STORED_AXES if axis in axes]
    view = batch.permute(0, *(1 + axes.index(axis) for axis in present))
    for position, axis in enumerate(STORED_AXES, start=1):
        if axis not in axes:
            view = view.unsqueeze(position)
    return view


def as_samples(stored: torch.Tensor, axes: str) -> torch.Tensor:
    """Return a view of images with axes N, T, C, Z, Y, X as samples; undoes `as_stored`.

    Args:
        stored: Any values, of size 1 along each axis that is not in `axes`.
        axes: Axes of a sample, as `choose_axes` gives them.
    """
    left_out = [axis for axis in STORED_AXES if axis not in axes]
    order = (1 + STORED_AXES.index(axis) for axis in (*axes, *left_out))
    samples = stored.permute(0, *order)
    for _ in left_out:
        samples = samples[..., 0]
    return samples
