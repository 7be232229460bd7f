"""Images that are brought to lie another way round: transposed, upside down, mirrored."""

from itertools import product
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader.transforms._blocks import work_through
from fastloader.transforms._compiled import MOST_BYTES, kernels_for

__all__ = ["Ways", "reorient"]


class Ways(NamedTuple):
    """What is done to each image, in this order; bool arrays of shape ``(N,)``."""

    transposed: NDArray[np.bool_]
    """Whether rows become columns."""
    upside_down: NDArray[np.bool_]
    """Whether top and bottom change places."""
    mirrored: NDArray[np.bool_]
    """Whether left and right change places."""


def reorient(images: torch.Tensor, ways: Ways, out: torch.Tensor) -> None:
    """Write the images another way round.

    Args:
        images: Shape ``(N, C, H, W)``, of a dtype that torch can move; square if one of them is
            transposed.
        ways: What to do to each.
        out: Where to: `images` itself, or other memory of the same shape.
    """
    if images.device.type != "cpu":
        _reorient_in_groups(images, ways, out)
    elif (kernels := kernels_for(out)) and out.element_size() <= MOST_BYTES:
        _reorient_compiled(kernels, images, ways, out)
    else:
        _reorient_one_by_one(images, ways, out)


def _reorient_compiled(
    kernels: ModuleType, images: torch.Tensor, ways: Ways, out: torch.Tensor
) -> None:
    sources, targets = images.numpy(), out.numpy()
    kinds = np.dot((4, 2, 1), ways).astype(np.uint8)
    work_through(
        images, lambda part: kernels.reorient(targets[part], sources[part], kinds[part])
    )


def _reorient_one_by_one(images: torch.Tensor, ways: Ways, out: torch.Tensor) -> None:
    # A view with negative strides costs nothing, and one copy is all: three times faster
    # than to gather, flip and scatter groups of images.
    sources, targets = images.numpy(), out.numpy()
    kinds = np.dot((4, 2, 1), ways).tolist()

    def move(part: slice) -> None:
        # One image at a time is put aside, and so stays in the cache.
        aside = np.empty((1, *sources.shape[1:]), sources.dtype) if out is images else None
        views = _all_ways(sources if aside is None else aside)
        for number in range(part.start, part.stop):
            kind = kinds[number]
            if aside is None:
                targets[number] = views[kind][number]
            elif kind:
                aside[0] = sources[number]
                targets[number] = views[kind][0]

    work_through(images, move)


def _all_ways(images: NDArray[np.generic]) -> list[NDArray[np.generic]]:
    """Return views of the images, in the order of transposed, upside down and mirrored."""
    return [
        (images.swapaxes(2, 3) if is_transposed else images)[:, :, ::rows, ::columns]
        for is_transposed, rows, columns in product((False, True), (1, -1), (1, -1))
    ]


def _reorient_in_groups(images: torch.Tensor, ways: Ways, out: torch.Tensor) -> None:
    if out is not images:
        out.copy_(images)
    for is_transposed, rows, columns in product((False, True), repeat=3):
        is_chosen = np.all(np.equal(np.transpose(ways), (is_transposed, rows, columns)), axis=1)
        chosen = torch.from_numpy(np.flatnonzero(is_chosen)).to(images.device)
        axes = [axis for axis, is_flipped in ((2, rows), (3, columns)) if is_flipped]
        if len(chosen) and (axes or is_transposed):
            part = images[chosen]
            out[chosen] = (part.mT if is_transposed else part).flip(axes)
