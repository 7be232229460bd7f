"""Blocks of a batch, small enough that what is computed on the way stays in the cache."""

from collections.abc import Iterator

import torch

__all__ = ["blocks", "num_at_once"]

_BLOCK_VALUES = 262_144  # for each thread: temporaries of one megabyte stay in its cache


def num_at_once(images: torch.Tensor, num_values: int | None = None) -> int:
    """Return how many images make a block; on an accelerator all do.

    Args:
        images: Shape ``(N, C, H, W)``.
        num_values: Values of a block; None: as many as torch's threads like.
    """
    if images.device.type != "cpu":
        return max(1, len(images))
    if num_values is None:
        num_values = _BLOCK_VALUES * torch.get_num_threads()
    return max(1, num_values // max(1, images[:1].numel()))


def blocks(images: torch.Tensor) -> Iterator[slice]:
    """Yield the parts of the first axis, in order.

    Args:
        images: Shape ``(N, C, H, W)``.
    """
    step = num_at_once(images)
    for first in range(0, len(images), step):
        yield slice(first, first + step)
