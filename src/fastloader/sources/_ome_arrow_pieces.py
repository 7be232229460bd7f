"""Chunks and planes as one thing: boxes of pixels with a place in an image, checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import (
    decoded,
    fits_int64,
    integer_values,
    list_bounds,
    number_values,
    valid_mask,
)
from fastloader.sources._ome_arrow_layout import CHUNK_PLACE, PLANE_PLACE

__all__ = ["PieceError", "Pieces", "box", "check_cover", "find_pieces", "first_pixels"]

Integers: TypeAlias = npt.NDArray[np.int64]


class PieceError(Exception):
    """Something is wrong with a piece of an image; who knows file and row says it."""

    def __init__(self, image: int, what: str) -> None:
        """Name the image.

        Args:
            image: Position of the image in the batch.
            what: The fault, without a full stop.
        """
        super().__init__(what)
        self.image = image


@dataclass(frozen=True, slots=True)
class Pieces:
    """Boxes of pixels, in the order in which they are stored, image by image."""

    image: Integers
    """Position in the batch of the image that each piece belongs to, shape ``(P,)``."""
    origin: Integers
    """First t, c, z, y, x of each piece, shape ``(5, P)``."""
    size: Integers
    """Extent along t, c, z, y, x of each piece, 1 along the first two, shape ``(5, P)``."""
    whole: Integers
    """T, C, Z, Y, X of each piece's image, shape ``(5, P)``."""
    first: Integers
    """Position of each piece's first pixel in its image, in C order, shape ``(P,)``."""
    num_pixels: Integers
    """Pixels of each piece, shape ``(P,)``."""
    structs: pa.StructArray
    """The chunks or planes; may hold more than these pieces."""
    struct: Integers | slice
    """Position of each piece in `structs`, shape ``(P,)``; a slice if these are all, in order."""


def find_pieces(
    column: pa.StructArray, name: str, images: Integers, shapes: Integers, samples: int = 1
) -> Pieces:
    """Return the chunks or planes of some images of a batch, each inside its image.

    Args:
        column: The image column of a record batch.
        name: ``"chunks"`` or ``"planes"``.
        images: Positions of the images in the batch, ascending.
        shapes: T, C, Z, Y, X of all images of the batch, shape ``(len(column), 5)``.
        samples: Values that each pixel has side by side; `shapes` counts them along X.

    Raises:
        PieceError: If a piece is null or reaches out of its image.
    """
    start, stop, structs = list_bounds(column.field(name))
    start, stop = start[images], stop[images]
    counts = stop - start
    image = np.repeat(images, counts)
    # A slice of a large table must not pay for all of it.
    struct: Integers | slice = slice(None)
    is_one = bool((start[1:] == stop[:-1]).all())  # as of one image: needs no positions
    if is_one and 0 < len(image) <= len(structs) - start[0]:
        structs = structs.slice(int(start[0]), len(image))
    elif len(image):
        before = np.cumsum(counts) - counts
        places = np.arange(len(image)) + np.repeat(start - before, counts)
        lowest = int(places.min())
        structs = structs.slice(lowest, int(places.max()) + 1 - lowest)
        struct = places - lowest
    else:
        structs = structs.slice(0, 0)
    if structs.null_count:
        _refuse(~valid_mask(structs)[struct], image, f"one of its {name} is null")
    place = np.ones((10, len(image)), np.int64)
    origin, size = place[:5], place[5:]
    whole = shapes[image].T
    if name == "planes":
        _read_numbers(structs, PLANE_PLACE, struct, image, origin)
        origin[3:] = 0
        size[3:] = whole[3:]
    else:
        _read_numbers(structs, CHUNK_PLACE[:5], struct, image, origin)
        _read_numbers(structs, CHUNK_PLACE[5:], struct, image, size[2:])
        if samples != 1:
            origin[4] *= samples
            size[4] *= samples
    _check_inside(image, origin, size, whole, name)
    first, num_pixels = first_pixels(origin, whole), size[2] * size[3] * size[4]
    return Pieces(image, origin, size, whole, first, num_pixels, structs, struct)


def check_cover(pieces: Pieces, shapes: Integers, images: Integers) -> npt.NDArray[np.bool_]:
    """Check that the pieces of each image fill it, each pixel once.

    Args:
        pieces: All inside their images.
        shapes: T, C, Z, Y, X of all images of the batch.
        images: Positions of the images that the pieces are of.

    Returns:
        Which pieces are one run of pixels in their image and belong to an image made of such
        pieces only, shape ``(P,)``. Others are tiles.

    Raises:
        PieceError: If pieces are missing or overlap.
    """
    expected = shapes.prod(axis=1)
    found = np.zeros(len(shapes), np.int64)
    np.add.at(found, pieces.image, pieces.num_pixels)
    wrong = found[images] != expected[images]
    _refuse(wrong, images, "its chunks or planes do not add up to its size")
    whole = pieces.whole
    is_run: npt.NDArray[np.bool_] = (pieces.size[4] == whole[4]) & (
        (pieces.size[3] == whole[3]) | (pieces.size[2] == 1)
    )
    if is_run.all():
        _check_runs(pieces, is_run)
        return is_run
    has_tiles = np.zeros(len(shapes), np.bool_)
    has_tiles[pieces.image[~is_run]] = True
    is_run = ~has_tiles[pieces.image]
    _check_runs(pieces, is_run)
    for image in np.flatnonzero(has_tiles).tolist():
        _check_tiles(pieces, image, shapes[image])
    return is_run


def first_pixels(origin: Integers, whole: Integers) -> Integers:
    """Return the position of each piece's first pixel in its image, in C order.

    Args:
        origin: First t, c, z, y, x of each piece, shape ``(5, P)``.
        whole: T, C, Z, Y, X of each piece's image, shape ``(5, P)``.
    """
    position = origin[0]
    for axis in range(1, 5):
        position = position * whole[axis] + origin[axis]
    return np.asarray(position)


def _read_numbers(
    structs: pa.StructArray,
    fields: Sequence[str],
    struct: Integers | slice,
    image: Integers,
    out: Integers,
) -> None:
    """Write fields of pieces to the rows of an array.

    Raises:
        PieceError: If one is null or no whole number.
    """
    for at, field in enumerate(fields):
        array = structs.field(field)
        if array.null_count or not fits_int64(array.type):
            out[at] = _checked_numbers(array, field, struct, image)
        else:
            out[at] = number_values(array)[struct]


def _checked_numbers(
    array: pa.Array, field: str, struct: Integers | slice, image: Integers
) -> Integers:
    array = decoded(array)
    try:
        values = integer_values(array)
    except (pa.ArrowException, ValueError) as error:
        first = int(image[0]) if len(image) else 0
        raise PieceError(first, f"{field} is no whole number ({error})") from error
    if array.null_count:
        _refuse(
            ~valid_mask(array)[struct], image, f"{field} of one of its chunks or planes is null"
        )
    return values[struct]


def _check_inside(
    image: Integers, origin: Integers, size: Integers, whole: Integers, name: str
) -> None:
    outside = (origin < 0) | (size < 1)
    outside |= origin > whole - size  # sums could wrap around
    if outside.any():
        at = int(np.argmax(outside.any(axis=0)))
        raise PieceError(
            int(image[at]),
            f"one of its {name} starts at t, c, z, y, x = {origin[:, at].tolist()} with "
            f"size z, y, x = {size[2:, at].tolist()}, which reaches out of the image of "
            f"sizes T, C, Z, Y, X = {whole[:, at].tolist()}",
        )


def _check_runs(pieces: Pieces, is_run: npt.NDArray[np.bool_]) -> None:
    """Runs that add up to their image fill it if none starts before the last one ends."""
    image, first, last = pieces.image, pieces.first, pieces.first + pieces.num_pixels
    if not _overlap(image, first, last).any():  # as stored, all in order: most are
        return
    order = np.lexsort((first, image))
    order = order[is_run[order]]
    image, first, last = image[order], first[order], last[order]
    _refuse(
        _overlap(image, first, last),
        image[1:],
        "its chunks or planes overlap, so that others are missing",
    )


def _overlap(image: Integers, first: Integers, last: Integers) -> npt.NDArray[np.bool_]:
    """Return which pieces, but for the first, start before the one before them ends."""
    return np.asarray((first[1:] < last[:-1]) & (image[1:] == image[:-1]))


def _check_tiles(pieces: Pieces, image: int, shape: Integers) -> None:
    """Tiles that add up to their image fill it if no pixel is left over.

    Raises:
        PieceError: If one is.
    """
    covered = np.zeros(shape, np.bool_)
    for at in np.flatnonzero(pieces.image == image).tolist():
        covered[box(pieces, at)] = True
    if not covered.all():
        raise PieceError(image, "its chunks overlap, so that some of its pixels are missing")


def box(pieces: Pieces, at: int) -> tuple[int | slice, ...]:
    """Return the index of a piece's pixels in an array of its image."""
    t, c, *start = pieces.origin[:, at].tolist()
    stops = pieces.size[2:, at].tolist()
    return (
        t,
        c,
        *(slice(begin, begin + extent) for begin, extent in zip(start, stops, strict=True)),
    )


def _refuse(wrong: npt.NDArray[np.bool_], image: Integers, what: str) -> None:
    if wrong.any():
        raise PieceError(int(image[np.argmax(wrong)]), what)
