"""Call a transform that takes its image by keyword, as albumentations has it."""

from typing import Any

import numpy as np
import torch

from fastloader.tensors._arrays import as_tensor

__all__ = ["AlbumentationsTransform"]


class AlbumentationsTransform:
    """Make a plain callable of a transform that is called as ``transform(image=...)``.

    The image goes in as a NumPy array with the channels last, and comes out as it came: a
    tensor or an array, channels first.

    Args:
        transform: An albumentations transform or ``Compose``.
    """

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def set_random_seed(self, seed: int) -> None:
        """Seed the generators that the transform owns, if it has any.

        Args:
            seed: 32 bits.
        """
        set_seed = getattr(self.transform, "set_random_seed", None)
        if set_seed is not None:
            set_seed(seed)

    def __call__(self, image: Any) -> Any:
        """Return the changed image.

        Args:
            image: Tensor or array, ``(H, W)`` or ``(C, H, W)``.
        """
        array = as_tensor(image).numpy()
        has_channels = array.ndim == 3
        given = np.ascontiguousarray(array.transpose(1, 2, 0)) if has_channels else array
        changed = self.transform(image=given)["image"]
        if has_channels:
            changed = np.ascontiguousarray(changed.transpose(2, 0, 1))
        return changed if isinstance(image, np.ndarray) else torch.from_numpy(changed)

    def __repr__(self) -> str:
        return f"AlbumentationsTransform({self.transform!r})"
