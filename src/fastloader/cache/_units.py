"""Which images are decoded together."""

import numpy as np
import numpy.typing as npt

__all__ = ["choose_units"]

_UNIT_BYTES = 8 << 20
"""Pixels of a unit, about: some milliseconds of decoding, so that nobody waits long for one
image, and enough that starting to read does not count."""


def choose_units(
    sizes_bytes: npt.NDArray[np.int64], groups: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int64]:
    """Return the first image of each unit, and last the number of images.

    Args:
        sizes_bytes: Bytes of each image, shape ``(num_images,)``.
        groups: Number of the group that each image is stored in, ascending; a group is not
            divided, since its source reads it as a whole. None if images are stored singly.
    """
    num_images = len(sizes_bytes)
    starts = np.arange(num_images, dtype=np.int64)
    if groups is not None:
        starts = np.flatnonzero(np.diff(groups, prepend=-1)).astype(np.int64)
    before = (np.cumsum(sizes_bytes) - sizes_bytes)[starts]
    is_first = np.diff(before // _UNIT_BYTES, prepend=-1) > 0
    return np.append(starts[is_first], num_images).astype(np.int64)
