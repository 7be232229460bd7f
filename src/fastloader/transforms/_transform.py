"""What a transform is: a value that changes images with the random numbers it is given."""

from typing import Any, ClassVar

import numpy as np
import torch

from fastloader.errors import ShapeError
from fastloader.randomness._keyed import Draws
from fastloader.tensors._arrays import as_tensor
from fastloader.tensors._buffers import allocating_scratch
from fastloader.transforms._blocks import blocks
from fastloader.transforms._pixels import (
    as_computable,
    as_movable,
    empty_images,
    is_computable,
    write_rounded,
)

__all__ = ["GeometricTransform", "IntensityTransform", "Transform"]


class Transform:
    """A random change of images that keeps no state.

    The numbers come from outside, keyed by sample (`Draws`), so the result depends on the
    image, the parameters and the key alone. Write your own as a frozen dataclass with one
    method, which always gets a batch and draws one number per image::

        @dataclass(frozen=True)
        class Negative(Transform):
            probability: float = 0.5

            def apply(self, images, draws):
                chosen = per_image(draws.chance(self.probability), images)
                return torch.where(chosen, -images, images)

    One image is a batch of one, so both give the same. Call it with an image, alone or with
    draws; or hand it to `Augment`, which knows the key of each sample.

    Two subclasses take care of pixel types: `GeometricTransform` for those that only move
    pixels, `IntensityTransform` for those that compute with them.
    """

    works_in_place: ClassVar[bool] = False
    """Whether `apply_in_place` may be called: it writes to the images it gets and returns these."""
    makes_new_images: ClassVar[bool] = True
    """Whether what `apply` returns lies in memory that nobody else has."""

    def __init_subclass__(cls) -> None:
        """Do not work in place by what is inherited where `apply` is written anew."""
        super().__init_subclass__()
        is_changed = not {"apply", "move", "compute"}.isdisjoint(vars(cls))
        if is_changed and "works_in_place" not in vars(cls):
            cls.works_in_place = False

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return the changed images; the only method to write.

        Args:
            images: Shape ``(N, C, H, W)``; must not be written to.
            draws: Random numbers of the N images.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError(f"{type(self).__name__} must define apply(images, draws).")

    def apply_to_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return label images changed along with their images, from the same draws.

        By default labels stay as they are; those of a `GeometricTransform` are moved.

        Args:
            labels: Shape ``(N, C, H, W)``, any dtype; must not be written to.
            draws: Random numbers of the N images, as `apply` got them.
        """
        del draws
        return labels

    def apply_in_place(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return the changed images, in the memory of `images`; called if it `works_in_place`.

        Args:
            images: Shape ``(N, C, H, W)``, which nobody else will look at.
            draws: Random numbers of the N images.
        """
        return self.apply(images, draws)

    def batch(
        self,
        images: torch.Tensor,
        draws: Draws,
        *,
        are_labels: bool = False,
        in_place: bool = False,
    ) -> torch.Tensor:
        """Return changed images, each with the draws of its own.

        Args:
            images: Shape ``(N, ..., H, W)``; axes between the first and the last two count
                as channels.
            draws: Random numbers of N images.
            are_labels: Whether the images are label images.
            in_place: Whether `images` may be written to, which takes less time where the
                transform `works_in_place`; labels are not.

        Returns:
            Tensor of the same dtype and on the same device.

        Raises:
            ShapeError: If there are fewer than three axes, or not as many draws as images.
        """
        if images.ndim < 3 or len(images) != len(draws):
            raise ShapeError(
                f"Expected a batch of {len(draws)} images, shape ({len(draws)}, ..., H, W), "
                f"but got a tensor of shape {tuple(images.shape)}."
            )
        overwrites = in_place and self.works_in_place and not are_labels
        unlabelled = self.apply_in_place if overwrites else self.apply
        method = self.apply_to_labels if are_labels else unlabelled
        if images.ndim == 4:
            return method(images, draws)
        num_channels = int(np.prod(images.shape[1:-2]))
        planes = images.reshape(len(images), num_channels, *images.shape[-2:])
        changed = method(planes, draws)
        return changed.reshape(*images.shape[:-2], *changed.shape[-2:])

    def __call__(self, image: Any, draws: Draws | None = None) -> Any:
        """Return the changed image or images.

        Args:
            image: One image ``(H, W)`` or ``(C, H, W)``, or a batch ``(N, C, H, W)``; a
                tensor on any device, or a NumPy array. It is not written to.
            draws: Random numbers of the image or of each in the batch. None: new ones from
                torch's global generator.

        Returns:
            Tensor or array, as `image` is, of the same dtype.

        Raises:
            ShapeError: If it is no tensor or array of that shape.
        """
        if isinstance(image, np.ndarray):
            return np.asarray(self(as_tensor(image), draws))
        if not isinstance(image, torch.Tensor):
            raise ShapeError(
                "Expected an image as a tensor or array of shape (H, W) or (C, H, W), or a batch "
                f"(N, C, H, W), but got {type(image).__name__}: convert it, for instance by "
                "numpy.asarray."
            )
        images = image if image.ndim == 4 else image[None]
        if draws is None:
            words = torch.randint(-(2**63), 2**63 - 1, (len(images),))
            draws = Draws(words.numpy().view(np.uint64))
        changed = self.batch(images, draws)
        return changed if image.ndim == 4 else changed[0]


class GeometricTransform(Transform):
    """A transform that only moves pixels: any dtype, and labels move along."""

    def move(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return the images with their pixels moved; the method to write.

        Args:
            images: Shape ``(N, C, H, W)``; unsigned types that torch cannot move come as the
                signed ones with the same bits.
            draws: Random numbers of the N images.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError(f"{type(self).__name__} must define move(images, draws).")

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Move the pixels as bits; see `Transform.apply`."""
        return self.move(as_movable(images), draws).view(images.dtype)

    def apply_to_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Move labels as their images; see `Transform.apply_to_labels`."""
        return self.apply(labels, draws)


class IntensityTransform(Transform):
    """A transform that computes with pixel values, in float32 (wide types: float64).

    Nothing is clamped. Integer images are rounded to the nearest value on the way back, and
    end at the bounds of their type.
    """

    def compute(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return the images with other values; the method to write.

        Args:
            images: Shape ``(N, C, H, W)``, float32 or float64; must not be written to.
            draws: Random numbers of the N images.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError(f"{type(self).__name__} must define compute(images, draws).")

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Compute in floating point and return to the dtype; see `Transform.apply`."""
        if is_computable(images):
            return self.compute(images, draws)
        changed = torch.empty(0)
        for block in blocks(images) if len(images) else [slice(None)]:
            with allocating_scratch():
                computed = self.compute(as_computable(images[block]), draws.take(block))
            if not block.start:
                changed = empty_images((len(images), *computed.shape[1:]), images)
            for part in blocks(computed):
                write_rounded(computed[part], changed[block][part])
        return changed
