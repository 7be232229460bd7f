"""How pixels lie in files of which C reads many at once, without the interpreter's lock."""

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["CompiledKind", "CompiledWay"]


class CompiledWay(IntEnum):
    """By which function of `fastloader.sources._raw_pixels.RawReader` an image is read."""

    NONE = 0
    """By Python."""
    RAW = 1
    """All pixels lie in the image's file in one piece and as they are wanted.

    Noted of each image are the file's stamp, and where the pixels begin.
    """
    SEGMENTS = 2
    """Pixels lie in strips or tiles that need no more than zlib.

    Noted of each image are the file's stamp, and position and length of each.
    """
    CHUNKS = 3
    """Pixels lie in chunks of a Zarr array, each in its file or in shards.

    Noted of each image are the stamp of the array's metadata, and the time after which no file of any
    was changed, as far as that is known.
    """


@dataclass(frozen=True, slots=True)
class CompiledKind:
    """What images of one layout have in common, for the function that reads them."""

    way: CompiledWay = CompiledWay.NONE
    numbers: tuple[int, ...] = ()
    """Of segments: planes, rows, columns and samples of a pixel; rows and columns of a strip or
    tile; bytes of a sample; 1 or 0 for being deflated, horizontally predicted, of the other byte
    order, and in tiles. Of chunks: what `_chunks.c` has in its records from the sizes of the array
    on, but for the last."""
