"""Several transforms one after the other, with what lies between in memory that is used again."""

from collections.abc import Sequence
from typing import Protocol

import torch

from fastloader._buffers import allocating_scratch
from fastloader._keyed import Draws

__all__ = ["Step", "apply_in_turn"]


class Step(Protocol):
    """What is applied, as `Transform.batch` takes it."""

    def __call__(self, images: torch.Tensor, draws: Draws, /) -> torch.Tensor: ...


def apply_in_turn(
    steps: Sequence[Step], images: torch.Tensor, draws: Sequence[Draws]
) -> torch.Tensor:
    """Return the images changed by each step.

    Only what the last one makes goes where the loader wants it, for room is precious there.
    The rest would otherwise lie in new memory each time, and the page faults of that cost more
    than most transforms.

    Args:
        steps: What to apply, in this order.
        images: Shape ``(N, ..., H, W)``.
        draws: Random numbers of the N images for each step.
    """
    if not steps:
        return images
    with allocating_scratch():
        for step, own in zip(steps[:-1], draws[:-1], strict=True):
            images = step(images, own)
    return steps[-1](images, draws[-1])
