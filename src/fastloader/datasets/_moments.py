"""Count, mean and sum of squared deviations of pixels, by channel, to be merged in any order.

Integers of up to 16 bits are summed exactly: a float64 holds the sum of squares of a tile, and
Python's integers the rest, so neither the order of the images nor the number of processes
changes the result by one bit. Everything else takes the mean of each row of a tile first and then
the deviations from it (passes over values in the CPU's cache), and rows are merged by the formula of
Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
1979 (Stanford STAN-CS-79-773). Means are kept to twice the digits of a float: where pixels differ
little from a large value, the rounding of means would otherwise be what is taken for their spread.
"""

import functools
import math
import operator
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, TypeAlias, cast

import numpy as np

from fastloader.errors import StatisticsError

__all__ = [
    "TILE_VALUES",
    "ExactMoments",
    "Moments",
    "RoundedMoments",
    "merge_moments",
    "moments_from_dict",
    "moments_of",
    "moments_of_each",
]

_Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_Tiles: TypeAlias = Iterator[tuple[slice, _Floats]]

# A tile of 2 MB stays in the CPU's caches between its three uses, and is large enough to
# make calls from Python cheap. Its rows are short enough (below 10,000) for OpenBLAS to keep a
# dot product in one thread. Both were measured; see benchmarks/bench_statistics.py.
TILE_VALUES = 262144
_MAX_ROW = 8192
_MIN_ROW = 256


@dataclass(frozen=True, slots=True)
class ExactMoments:
    """Moments of small integers: exact sums of the pixels of each channel."""

    counts: tuple[int, ...]
    """Number of pixels."""
    sums: tuple[int, ...]
    """Sum of the pixels."""
    sums_of_squares: tuple[int, ...]
    """Sum of the squares of the pixels."""

    # Python divides integers of any size with one rounding.

    @property
    def means(self) -> tuple[float, ...]:
        """Mean; 0 if there are no pixels."""
        return tuple(s / max(n, 1) for n, s in zip(self.counts, self.sums, strict=True))

    @property
    def remainders(self) -> tuple[float, ...]:
        """What the means lack, as for `RoundedMoments`."""
        columns = zip(self.counts, self.sums, self.means, strict=True)
        return tuple(float(Fraction(s, max(n, 1)) - Fraction(mean)) for n, s, mean in columns)

    @property
    def squares(self) -> tuple[float, ...]:
        """Sum of squared deviations from the mean."""
        columns = zip(self.counts, self.sums, self.sums_of_squares, strict=True)
        return tuple((n * q - s * s) / max(n, 1) for n, s, q in columns)


@dataclass(frozen=True, slots=True)
class RoundedMoments:
    """Moments of other numbers, in float64."""

    counts: tuple[int, ...]
    """Number of pixels of each channel."""
    means: tuple[float, ...]
    """Mean; 0 if there are no pixels."""
    remainders: tuple[float, ...]
    """What the means lack, being rounded to one float: their next digits."""
    squares: tuple[float, ...]
    """Sum of squared deviations from the mean."""


Moments: TypeAlias = ExactMoments | RoundedMoments


def moments_of(
    pixels: np.ndarray[Any, Any], keep: np.ndarray[Any, Any] | None = None
) -> Moments:
    """Take the moments of some images.

    Args:
        pixels: Shape (N, C, P): images, channels, pixels; any real dtype.
        keep: Which pixels count, of the same shape; None for all.
    """
    if keep is not None:
        channels = range(pixels.shape[1])
        chosen = [pixels[:, c][keep[:, c]].reshape(1, 1, -1) for c in channels]
        return _side_by_side([moments_of(values) for values in chosen])
    num_channels, num_pixels = pixels.shape[1:]
    if pixels.size == 0:
        nothing = (0,) * num_channels
        return ExactMoments(nothing, nothing, nothing)
    if _row_length(num_pixels) < min(num_pixels, _MIN_ROW):
        # A prime number of pixels, or nearly: the odd ones are taken apart.
        split = num_pixels - num_pixels % _MIN_ROW
        head, tail = pixels[:, :, :split], pixels[:, :, split:]
        return merge_moments(moments_of(head), moments_of(tail))
    rows = pixels.reshape(-1, _row_length(num_pixels))
    take = _exact if _is_exact(pixels.dtype) else _two_pass
    return take(_tiles(rows), pixels.shape, rows.shape)


def moments_of_each(images: Sequence[np.ndarray[Any, Any]], num_channels: int) -> Moments:
    """Take the moments of small images that lie apart, without a copy to one place first.

    Args:
        images: All of one shape, not empty and of at most `TILE_VALUES` pixels; the first axis
            is that of the channels, unless there is one channel.
        num_channels: Number of channels.
    """
    first = images[0]
    num_pixels = first.size // num_channels
    length = _row_length(num_pixels)
    if length < min(num_pixels, _MIN_ROW):
        return moments_of(np.stack(images).reshape(len(images), num_channels, -1))
    shape = (len(images), num_channels, num_pixels)
    take = _exact if _is_exact(first.dtype) else _two_pass
    num_rows = len(images) * first.size // length
    return take(_tiles_of_each(images, length), shape, (num_rows, length))


def merge_moments(first: Moments, second: Moments) -> Moments:
    """Return the moments of both sets of pixels together.

    Args:
        first: Some moments.
        second: Others, of the same number of channels.
    """
    counts = _added(first.counts, second.counts)
    if isinstance(first, ExactMoments) and isinstance(second, ExactMoments):
        return ExactMoments(
            counts,
            _added(first.sums, second.sums),
            _added(first.sums_of_squares, second.sums_of_squares),
        )
    pairs = (
        np.array([getattr(one, field.name) for one in (first, second)], np.float64).T
        for field in fields(RoundedMoments)
    )
    merged = [_combine(*column) for column in zip(*pairs, strict=True)]
    return RoundedMoments(counts, *zip(*merged, strict=True))


def moments_from_dict(values: Any) -> Moments:
    """Make moments from what JSON keeps of them.

    Args:
        values: The fields of one of the classes, with lists for tuples.

    Raises:
        StatisticsError: If these are no moments.
    """
    is_exact = isinstance(values, dict) and "sums" in values
    kind: type[Any] = ExactMoments if is_exact else RoundedMoments
    try:
        counts, *others = (values[field.name] for field in fields(kind))
        number = int if is_exact else float
        columns = [tuple(map(int, counts)), *(tuple(map(number, other)) for other in others)]
    except (KeyError, TypeError, ValueError) as error:
        raise StatisticsError(f"Expected moments of pixels, but got {error!r}.") from error
    if len({len(column) for column in columns}) != 1:
        raise StatisticsError("Expected moments of as many channels in each list.")
    if not columns[0] or min(columns[0]) < 1:
        raise StatisticsError(
            f"Expected channels of 1 pixel or more, but got counts {list(columns[0])}."
        )
    moments = cast("Moments", kind(*columns))
    if not all(map(math.isfinite, moments.means + moments.remainders)) or not all(
        0 <= square < math.inf for square in moments.squares
    ):
        raise StatisticsError(
            "Expected finite means and sums of squared deviations of at least 0, but got means "
            f"{moments.means} and sums {moments.squares}."
        )
    return moments


def _added(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(operator.add, first, second))


def _side_by_side(channels: Sequence[Moments]) -> Moments:
    """Return the moments of single channels as those of several."""
    are_exact = all(isinstance(one, ExactMoments) for one in channels)
    kind: type[Any] = ExactMoments if are_exact else RoundedMoments
    columns = (tuple(getattr(one, field.name)[0] for one in channels) for field in fields(kind))
    return cast("Moments", kind(*columns))


def _is_exact(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "bui" and dtype.itemsize <= 2


def _exact(tiles: _Tiles, shape: tuple[int, ...], rows: tuple[int, ...]) -> ExactMoments:
    """Sum tiles exactly.

    Args:
        tiles: Of all rows.
        shape: Images, channels, pixels.
        rows: Number of rows, and their length.
    """
    num_images, num_channels, num_pixels = shape
    by_row = np.empty((2, rows[0]))  # sums, and sums of squares
    for where, tile in tiles:
        _row_sums(tile, by_row[0, where])
        _row_squares(tile, by_row[1, where])
    # 64 bits hold the squares of 2**31 pixels of 16 bits: far more than one call gets.
    whole = by_row.astype(np.int64).reshape(2, num_images, num_channels, -1)
    # One axis after the other: both at once take ten times as long.
    sums, squares = whole.sum(axis=3).sum(axis=1).tolist()
    counts = (num_images * num_pixels,) * num_channels
    return ExactMoments(counts, tuple(sums), tuple(squares))


def _two_pass(tiles: _Tiles, shape: tuple[int, ...], rows: tuple[int, ...]) -> RoundedMoments:
    """Take means first and then deviations; arguments as for `_exact`."""
    num_images, num_channels, num_pixels = shape
    means, remainders, squares = np.empty((3, rows[0]))
    for where, tile in tiles:
        _row_sums(tile, means[where])
        means[where] /= rows[1]
        np.subtract(tile, means[where, None], out=tile)
        _row_sums(tile, remainders[where])  # 0 but for rounding
        _row_squares(tile, squares[where])
    squares -= remainders**2 / rows[1]
    np.maximum(squares, 0.0, out=squares)  # or a constant row may fall below by rounding
    remainders /= rows[1]
    by_channel = [
        part.reshape(num_images, num_channels, -1).swapaxes(0, 1).reshape(num_channels, -1)
        for part in (means, remainders, squares)
    ]
    sizes = np.full(by_channel[0].shape[1], float(rows[1]))
    merged = [_combine(sizes, *parts) for parts in zip(*by_channel, strict=True)]
    counts = (num_images * num_pixels,) * num_channels
    return RoundedMoments(counts, *zip(*merged, strict=True))


def _combine(
    counts: _Floats, means: _Floats, remainders: _Floats, squares: _Floats
) -> tuple[float, float, float]:
    """Return mean, remainder and squared deviations of all parts together (Chan et al., 1979)."""
    total = counts.sum()
    if total == 0:
        return 0.0, 0.0, 0.0
    # Relative to one of the means, so that a large common offset costs no digits.
    pivot = float(means[np.argmax(counts)])
    deviations = (means - pivot) + remainders
    shift = float((deviations * counts).sum() / total)
    mean = pivot + shift
    rounded = mean - pivot  # the error of a sum (Knuth, 1969)
    remainder = (pivot - (mean - rounded)) + (shift - rounded)
    return mean, remainder, float(squares.sum() + (counts * (deviations - shift) ** 2).sum())


@functools.lru_cache(maxsize=64)
def _row_length(num_pixels: int) -> int:
    """Return the largest divisor of `num_pixels` that is short enough for a row."""
    return next(n for n in range(min(num_pixels, _MAX_ROW), 0, -1) if num_pixels % n == 0)


def _tiles(rows: np.ndarray[Any, Any]) -> _Tiles:
    """Yield the rows as float64 tiles, which may be written to, and where each stands."""
    num_rows, length = rows.shape
    step = max(1, TILE_VALUES // length)
    for start in range(0, num_rows, step):
        where = slice(start, min(start + step, num_rows))
        tile = _scratch_of(where.stop - start, length)
        np.copyto(tile, rows[where])
        yield where, tile


def _tiles_of_each(images: Sequence[np.ndarray[Any, Any]], length: int) -> _Tiles:
    """Yield the rows of images that lie apart, as `_tiles` does."""
    size, shape = images[0].size, images[0].shape
    step = max(1, TILE_VALUES // size)
    for start in range(0, len(images), step):
        part = images[start : start + step]
        tile = _scratch_of(len(part) * size // length, length)
        np.concatenate(part, out=tile.reshape(-1, *shape[1:]))
        first = start * size // length
        yield slice(first, first + len(tile)), tile


def _scratch_of(num_rows: int, length: int) -> _Floats:
    if _scratch.values.size < num_rows * length:
        _scratch.values = np.empty(num_rows * length)
    return _scratch.values[: num_rows * length].reshape(num_rows, length)


class _Scratch(threading.local):
    """Memory of the tiles, kept from call to call: new memory costs more than the sums."""

    values: _Floats = np.empty(0)


_scratch = _Scratch()


def _row_sums(tile: _Floats, out: _Floats) -> None:
    # A quarter faster than np.sum, which adds by halves to lose no digits: here none can be lost.
    np.einsum("ij->i", tile, out=out)


if hasattr(np, "vecdot"):  # NumPy 2

    def _row_squares(tile: _Floats, out: _Floats) -> None:
        np.vecdot(tile, tile, out=out)

else:

    def _row_squares(tile: _Floats, out: _Floats) -> None:
        np.einsum("ij,ij->i", tile, tile, out=out)
