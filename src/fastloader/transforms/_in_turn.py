"""Several transforms one after the other, with as little memory between them as they need."""

from collections.abc import Sequence
from operator import and_
from typing import Final

import torch

from fastloader.randomness._keyed import Draws
from fastloader.tensors._buffers import allocating_scratch
from fastloader.transforms._transform import Transform

__all__ = ["apply_in_turn"]


_PACKAGE: Final = __name__.rpartition(".")[0]


def apply_in_turn(
    transforms: Sequence[Transform],
    images: torch.Tensor,
    draws: Sequence[Draws],
    *,
    are_labels: bool = False,
    may_overwrite: bool = False,
) -> torch.Tensor:
    """Return the images changed by each transform.

    What one of ours has made, the next ones write over where they can. Only the last one that
    needs memory of its own gets it where the loader wants the batch, for room is precious
    there. What lies between would otherwise lie in new memory each time, and the page faults of
    that cost more than most transforms.

    Args:
        transforms: What to apply, in this order.
        images: Shape ``(N, ..., H, W)``.
        draws: Random numbers of the N images for each transform.
        are_labels: Whether the images are label images, which are never written to.
        may_overwrite: Whether `images` may be written to, as nobody else refers to them.
    """
    can_overwrite = [not are_labels and one.works_in_place for one in transforms]
    are_new = [may_overwrite, *(_is_ours(one) and one.makes_new_images for one in transforms)]
    in_place = list(map(and_, can_overwrite, are_new))
    num_before = max(
        (n for n, is_in_place in enumerate(in_place) if not is_in_place), default=0
    )
    steps = list(zip(transforms, draws, in_place, strict=True))
    with allocating_scratch():
        for transform, own, is_in_place in steps[:num_before]:
            images = transform.batch(images, own, are_labels=are_labels, in_place=is_in_place)
    for transform, own, is_in_place in steps[num_before:]:
        images = transform.batch(images, own, are_labels=are_labels, in_place=is_in_place)
    return images


def _is_ours(transform: Transform) -> bool:
    # A class that somebody else has derived may hand out memory that it keeps.
    return type(transform).__module__.startswith(f"{_PACKAGE}.")
