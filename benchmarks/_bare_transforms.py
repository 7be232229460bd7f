"""The work of each transform on its pixels alone.

Everything is drawn and every view is made before the clock runs, and results go to memory that is
ready: what is timed are the pixels alone, by the fastest of the ways that were tried.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastloader.transforms import Draws

__all__ = ["bare_work"]

_Array = np.ndarray[Any, Any]
_BLOCK = 16  # images whose values stay in the cache of a core between two steps


def bare_work(name: str, images: torch.Tensor) -> Callable[[], object]:
    """Return what does the bare work of a transform.

    Args:
        name: Of the transform, as in `bench_augment`.
        images: Shape ``(N, 3, 64, 64)``, float32 or uint16.
    """
    bits = images.view(torch.int16) if images.dtype == torch.uint16 else images
    if name in _COPIES:
        return _copies(*_COPIES[name](bits.numpy()))
    if name in _ARITHMETIC:
        return _ARITHMETIC[name](images)
    return _copy(bits)


def _copy(images: torch.Tensor) -> Callable[[], object]:
    out = torch.empty_like(images)
    return lambda: out.copy_(images)


def _copies(targets: list[_Array], sources: list[_Array]) -> Callable[[], object]:
    """Copy some views to others, one by one: to gather, turn and scatter groups takes longer."""
    pairs = list(zip(targets, sources, strict=True))

    def run() -> None:
        for target, source in pairs:
            target[...] = source

    return run


def _flip(images: _Array) -> tuple[list[_Array], list[_Array]]:
    draws = Draws.of(1, 2, range(len(images)))
    mirrored, upside_down = draws.chance(0.5), draws.chance(0.5)
    columns, rows = (np.where(each, -1, 1).tolist() for each in (mirrored, upside_down))
    views = [
        image[:, ::row, ::column]
        for image, row, column in zip(images, rows, columns, strict=True)
    ]
    return list(np.empty_like(images)), views


def _turn(images: _Array) -> tuple[list[_Array], list[_Array]]:
    turns = Draws.of(1, 2, range(len(images))).integers(0, 4).tolist()
    views = [np.rot90(image, turn, (1, 2)) for image, turn in zip(images, turns, strict=True)]
    return list(np.empty_like(images)), views


def _crop(images: _Array) -> tuple[list[_Array], list[_Array]]:
    draws = Draws.of(1, 2, range(len(images)))
    top, left = draws.integers(0, 17).tolist(), draws.integers(0, 17).tolist()
    views = [
        image[:, y : y + 48, x : x + 48] for image, y, x in zip(images, top, left, strict=True)
    ]
    return list(np.empty((len(images), 3, 48, 48), images.dtype)), views


def _padded_crop(images: _Array) -> tuple[list[_Array], list[_Array]]:
    draws = Draws.of(1, 2, range(len(images)))
    rows, columns = draws.integers(-8, 9).tolist(), draws.integers(-8, 9).tolist()
    targets: list[_Array] = []
    sources: list[_Array] = []
    nothing = np.zeros((3, 64, 64), images.dtype)
    for image, window, y, x in zip(images, np.empty_like(images), rows, columns, strict=True):
        targets += [window, window[:, max(-y, 0) : 64 - max(y, 0), max(-x, 0) : 64 - max(x, 0)]]
        sources += [nothing, image[:, max(y, 0) : 64 + min(y, 0), max(x, 0) : 64 + min(x, 0)]]
    return targets, sources


def _gamma(images: torch.Tensor) -> Callable[[], object]:
    """The least and greatest of each image, and the share of each pixel between them as a power.

    A logarithm and an exponential: NumPy's and torch's powers take three times as long.
    """
    values = images.numpy().reshape(len(images), -1)
    gammas = Draws.of(1, 2, range(len(images))).uniform(0.7, 1.5)[:, None].astype(np.float32)
    out = np.empty(values.shape, np.float32)

    def run() -> None:
        for first in range(0, len(values), _BLOCK):
            block = slice(first, first + _BLOCK)
            part, powers = values[block], out[block]
            low = part.min(axis=1, keepdims=True)
            extent = np.subtract(part.max(axis=1, keepdims=True), low, dtype=np.float32)
            np.subtract(part, low, out=powers)
            powers /= extent
            with np.errstate(divide="ignore"):
                np.log2(powers, out=powers)
            powers *= gammas[block]
            np.exp2(powers, out=powers)
            powers *= extent
            powers += low

    return run


def _normal_numbers(images: torch.Tensor) -> Callable[[], object]:
    """Normal numbers of torch, and nothing added to them."""
    out = torch.empty(images.shape)
    return out.normal_


def _blur(images: torch.Tensor) -> Callable[[], object]:
    """Rows summed by weight, then columns as rows of the turned image, images of one width at once.

    Two sums of products and two turns of images; torch's convolution takes longer.
    """
    sigma = Draws.of(1, 2, range(len(images))).uniform(0.0, 1.5)
    radii = (4 * sigma + 0.5).astype(np.int64)
    planes = images.numpy().astype(np.float32).reshape(-1, *images.shape[2:])
    height, width = images.shape[2:]
    parts = []
    for radius in sorted(set(radii.tolist())):
        chosen = np.flatnonzero(np.repeat(radii, images.shape[1]) == radius)
        distance = np.abs(np.arange(-radius, radius + 1))
        widths = np.maximum(np.repeat(sigma, images.shape[1])[chosen, None], 1e-6)
        weights = np.exp(-0.5 * (distance / widths) ** 2)
        weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        for first in range(0, len(chosen), _BLOCK):
            some = slice(first, first + _BLOCK)
            padded = np.pad(planes[chosen[some]], ((0, 0), (radius, radius), (0, 0)), "edge")
            parts.append((padded, weights[some]))
    summed = np.empty((_BLOCK, height, width), np.float32)
    lines = summed.reshape(_BLOCK, -1)

    def sum_rows(padded: _Array, weights: _Array) -> None:
        shape = (len(padded), weights.shape[1], lines.shape[1])
        shifted = np.lib.stride_tricks.as_strided(padded, shape, padded.strides)
        np.einsum("nk,nkl->nl", weights, shifted, out=lines[: len(padded)])

    def run() -> None:
        for padded, weights in parts:
            sum_rows(padded, weights)
            radius = weights.shape[1] // 2
            padded[:, radius : radius + width] = summed[: len(padded)].swapaxes(1, 2)
            sum_rows(padded, weights)
            padded[:, radius : radius + height] = summed[: len(padded)].swapaxes(1, 2)

    return run


def _mean_and_copy(images: torch.Tensor) -> Callable[[], object]:
    out = torch.empty_like(images)
    planes = images.numpy().reshape(*images.shape[:2], -1)

    def run() -> None:
        planes.mean(axis=2, dtype=np.float64)
        out.copy_(images)

    return run


_COPIES = {"flip": _flip, "quarter turn": _turn, "crop": _crop, "padded crop": _padded_crop}
_ARITHMETIC = {
    "gamma": _gamma,
    "noise": _normal_numbers,
    "blur": _blur,
    "cutout, mean": _mean_and_copy,
}
