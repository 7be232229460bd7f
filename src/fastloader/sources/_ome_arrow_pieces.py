"""Chunks and planes as one thing: boxes of pixels with a place in an image, checked."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.sources._arrow_buffers import decoded, integer_values, list_bounds, valid_mask
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
    """Extent along z, y, x of each piece, shape ``(3, P)``."""
    structs: pa.StructArray
    """The chunks or planes; may hold more than these pieces."""
    struct: Integers
    """Position of each piece in `structs`, shape ``(P,)``."""

    @property
    def num_pixels(self) -> Integers:
        """Pixels of each piece, shape ``(P,)``."""
        return np.asarray(self.size.prod(axis=0))


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
    before = np.cumsum(counts) - counts
    struct = np.arange(len(image)) + np.repeat(start - before, counts)
    if len(struct):  # a slice of a large table must not pay for all of it
        first = int(struct.min())
        structs = structs.slice(first, int(struct.max()) + 1 - first)
        struct = struct - first
    if structs.null_count:
        _refuse(~valid_mask(structs)[struct], image, f"one of its {name} is null")
    fields = CHUNK_PLACE if name == "chunks" else PLANE_PLACE
    place = np.empty((len(fields), len(image)), np.int64)
    for at, field in enumerate(fields):
        place[at] = _numbers(structs, field, struct, image)
    if name == "planes":
        whole = shapes[image].T
        origin = np.concatenate([place, np.zeros((2, len(image)), np.int64)])
        size = np.stack([np.ones(len(image), np.int64), whole[3], whole[4]])
    else:
        origin, size = place[:5], place[5:]
        origin[4] *= samples
        size[2] *= samples
    pieces = Pieces(image, origin, size, structs, struct)
    _check_inside(pieces, shapes, name)
    return pieces


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
    whole = shapes[pieces.image].T
    is_run = (pieces.size[2] == whole[4]) & (
        (pieces.size[1] == whole[3]) | (pieces.size[0] == 1)
    )
    has_tiles = np.zeros(len(shapes), np.bool_)
    has_tiles[pieces.image[~is_run]] = True
    is_run = ~has_tiles[pieces.image]
    _check_runs(pieces, is_run, whole)
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


def _numbers(
    structs: pa.StructArray, field: str, struct: Integers, image: Integers
) -> Integers:
    array = decoded(structs.field(field))
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


def _check_inside(pieces: Pieces, shapes: Integers, name: str) -> None:
    whole = shapes[pieces.image].T
    outside = (pieces.origin < 0) | (pieces.origin >= whole)
    outside[2:] |= (pieces.size < 1) | (pieces.size > whole[2:])
    outside[2:] |= pieces.origin[2:] > whole[2:] - pieces.size  # sums could wrap around
    if outside.any():
        at = int(np.argmax(outside.any(axis=0)))
        raise PieceError(
            int(pieces.image[at]),
            f"one of its {name} starts at t, c, z, y, x = {pieces.origin[:, at].tolist()} with "
            f"size z, y, x = {pieces.size[:, at].tolist()}, which reaches out of the image of "
            f"sizes T, C, Z, Y, X = {whole[:, at].tolist()}",
        )


def _check_runs(pieces: Pieces, is_run: npt.NDArray[np.bool_], whole: Integers) -> None:
    """Runs that add up to their image fill it if none starts before the last one ends."""
    first = first_pixels(pieces.origin, whole)
    order = np.lexsort((first, pieces.image))
    order = order[is_run[order]]
    image, first = pieces.image[order], first[order]
    last = first + pieces.num_pixels[order]
    overlap = (image[1:] == image[:-1]) & (first[1:] < last[:-1])
    _refuse(overlap, image[1:], "its chunks or planes overlap, so that others are missing")


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
    stops = pieces.size[:, at].tolist()
    return (
        t,
        c,
        *(slice(begin, begin + extent) for begin, extent in zip(start, stops, strict=True)),
    )


def _refuse(wrong: npt.NDArray[np.bool_], image: Integers, what: str) -> None:
    if wrong.any():
        raise PieceError(int(image[np.argmax(wrong)]), what)
