"""Transforms made of transforms: sometimes, one of several, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader.errors import SettingsError, ShapeError
from fastloader.randomness._keyed import Draws
from fastloader.transforms._bounds import check_probability
from fastloader.transforms._in_turn import apply_in_turn
from fastloader.transforms._pixels import as_movable
from fastloader.transforms._transform import Transform

__all__ = ["Chain", "OneOf", "Sometimes"]

_Part: TypeAlias = tuple[NDArray[np.int64], torch.Tensor]


@dataclass(frozen=True)
class Chain(Transform):
    """Apply transforms one after the other."""

    makes_new_images: ClassVar[bool] = False
    transforms: tuple[Transform, ...]
    """What to apply, in this order."""

    def __init__(self, *transforms: Transform) -> None:
        object.__setattr__(self, "transforms", transforms)
        _check_parts("Chain", transforms)

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.transforms))})"

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Apply each; see `Transform.apply`."""
        return apply_in_turn(self.transforms, images, self._streams(draws))

    def apply_to_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Apply each to labels; see `Transform.apply_to_labels`."""
        return apply_in_turn(self.transforms, labels, self._streams(draws), are_labels=True)

    def _streams(self, draws: Draws) -> list[Draws]:
        return [draws.stream(number) for number in range(len(self.transforms))]


@dataclass(frozen=True)
class OneOf(Transform):
    """Apply one of several transforms to each image, with equal or given chances.

    Each must keep the shape of the images, or all must change it alike.
    """

    makes_new_images: ClassVar[bool] = False
    transforms: tuple[Transform, ...]
    """What to choose from."""
    weights: tuple[float, ...] | None = None
    """Relative chance of each; None: all alike."""

    def __init__(self, *transforms: Transform, weights: Sequence[float] | None = None) -> None:
        object.__setattr__(self, "transforms", transforms)
        object.__setattr__(self, "weights", None if weights is None else tuple(weights))
        _check_parts("OneOf", transforms)
        if not transforms:
            raise SettingsError("OneOf needs at least one transform.")
        chances = self._chances()
        if len(chances) != len(transforms) or min(chances) < 0 or not sum(chances) > 0:
            raise SettingsError(
                f"weights must hold {len(transforms)} numbers, none negative and not all 0, "
                f"but got {weights}."
            )

    def __repr__(self) -> str:
        weights = [] if self.weights is None else [f"weights={self.weights}"]
        return f"OneOf({', '.join([*map(repr, self.transforms), *weights])})"

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Apply the chosen; see `Transform.apply`."""
        return self._apply(images, draws, are_labels=False)

    def apply_to_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Apply the chosen to labels; see `Transform.apply_to_labels`."""
        return self._apply(labels, draws, are_labels=True)

    def _apply(self, images: torch.Tensor, draws: Draws, *, are_labels: bool) -> torch.Tensor:
        if len(images) == 0:  # any of them tells the shape
            return self.transforms[0].batch(images, draws, are_labels=are_labels)
        bounds = np.cumsum(self._chances())
        choice = np.searchsorted(bounds, draws.uniform(0.0, bounds[-1]), side="right")
        parts = []
        for number, transform in enumerate(self.transforms):
            chosen = np.flatnonzero(choice == number)
            if len(chosen):
                some = _taken(images, chosen)
                part_draws = draws.stream(number).take(chosen)
                part = transform.batch(some, part_draws, are_labels=are_labels)
                parts.append((chosen, part))
        return _merged(images, parts)

    def _chances(self) -> tuple[float, ...]:
        return (1.0,) * len(self.transforms) if self.weights is None else self.weights


@dataclass(frozen=True)
class Sometimes(Transform):
    """Apply a transform to some images and leave the others as they are."""

    makes_new_images: ClassVar[bool] = False
    transform: Transform
    """What to apply; it must keep the shape of the images."""
    probability: float = 0.5
    """Probability that an image is changed."""

    def __post_init__(self) -> None:
        _check_parts("Sometimes", [self.transform])
        check_probability("probability", self.probability)

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Apply to some; see `Transform.apply`."""
        return self._apply(images, draws, are_labels=False)

    def apply_to_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Apply to some labels; see `Transform.apply_to_labels`."""
        return self._apply(labels, draws, are_labels=True)

    def _apply(self, images: torch.Tensor, draws: Draws, *, are_labels: bool) -> torch.Tensor:
        is_changed = draws.chance(self.probability)
        chosen, others = np.flatnonzero(is_changed), np.flatnonzero(~is_changed)
        if not len(chosen):
            return images
        some = _taken(images, chosen)
        inner = draws.stream(0).take(chosen)
        changed = self.transform.batch(some, inner, are_labels=are_labels)
        if not len(others):
            return changed
        return _merged(images, [(chosen, changed), (others, _taken(images, others))])


def _check_parts(name: str, transforms: Sequence[object]) -> None:
    """Check what a transform is to be made of.

    Raises:
        SettingsError: If one of them is no transform.
    """
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise SettingsError(
                f"{name} takes transforms of fastloader.transforms, such as RandomFlip(), but "
                f"got {transform!r}: give other callables to Augment."
            )


def _taken(images: torch.Tensor, chosen: NDArray[np.int64]) -> torch.Tensor:
    positions = torch.from_numpy(chosen).to(images.device)
    return as_movable(images)[positions].view(images.dtype)


def _merged(images: torch.Tensor, parts: list[_Part]) -> torch.Tensor:
    """Put parts of a batch, each changed by itself, back in order.

    Args:
        images: The whole batch, for its dtype and device.
        parts: Positions and images of each part, which together make up the batch.

    Raises:
        ShapeError: If the parts have images of different shapes.
    """
    shapes = {tuple(part.shape[1:]) for _, part in parts}
    if len(shapes) > 1:
        raise ShapeError(
            f"Images of one batch have become different shapes {sorted(shapes)}: give Sometimes "
            "and OneOf only transforms that keep the shape."
        )
    merged = torch.empty((len(images), *shapes.pop()), dtype=images.dtype, device=images.device)
    bits = as_movable(merged)
    for chosen, part in parts:
        bits[torch.from_numpy(chosen).to(images.device)] = as_movable(part)
    return merged
