"""Images that processes decode once, together, and keep."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.cache._board import FillBoard
from fastloader.cache._checksums import UnitChecksums
from fastloader.cache._layout import PixelLayout
from fastloader.cache._packed import PackedImages
from fastloader.cache._pixel_bytes import FilePixels
from fastloader.cache._ready_marker import ReadyMarker
from fastloader.errors import SourceError
from fastloader.shm import MemoryWriter

__all__ = ["Decode", "ImageCache"]

Decode: TypeAlias = Callable[[npt.NDArray[np.int64], MemoryWriter], None]
"""Takes positions of images, ascending, and a writer of pixels; decodes these images."""

_POLL_SECONDS = 0.001


class ImageCache:
    """Images of which some are there already, and how the others get there.

    **Processes:** all that share the memory fill it together and see what the others decoded.
    Each image is there as soon as it is decoded, and whoever needs one that is not waits for
    it alone.
    """

    def __init__(
        self,
        layout: PixelLayout,
        pixels: FilePixels,
        board: FillBoard,
        checksums: UnitChecksums | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            layout: Where each image lies.
            pixels: The bytes of all images.
            board: Which images are there.
            checksums: Of pixels that outlive the processes; None if they do not.
        """
        self._layout = layout
        self._pixels = pixels
        self._images = PackedImages(layout, pixels)
        self._board = board
        self._checksums = checksums

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # what is decoded does not change

    @property
    def images(self) -> PackedImages:
        """The pixels of all images; those not there yet are zeros or in part."""
        return self._images

    @property
    def num_ready(self) -> int:
        """Number of images that are there."""
        return self._board.num_ready

    @property
    def missing_bytes(self) -> int:
        """Bytes of the images that are not there yet."""
        missing = self._board.missing(np.arange(len(self._layout)))
        return int(self._layout.sizes_bytes[missing].sum())

    @property
    def pixels(self) -> FilePixels:
        """Where their bytes are."""
        return self._pixels

    def set_full(self) -> None:
        """Tell all processes that all images are there: they were written by other ways."""
        self._board.set_ready(slice(0, len(self._layout)))

    def require(self, positions: Sequence[int] | npt.NDArray[np.int64], decode: Decode) -> None:
        """Return when some images are there: decode them, or wait for those who are at it.

        An image that cannot be decoded is an error for who requires it, not for its neighbours.
        """
        if self._board.is_full():
            return
        missing = self._board.missing(np.asarray(positions, np.int64))
        while len(missing):
            with self._board.claim(self._board.units_of(missing)) as units:
                try:
                    self._finish(units, decode)
                except SourceError:
                    self._decode_singly(units, missing, decode)
            if not units:
                time.sleep(_POLL_SECONDS)
            missing = self._board.missing(missing)

    def fill(self, decode: Decode, span_bytes: int) -> bool:
        """Decode the next images that nobody has decoded or is at.

        Args:
            decode: Decodes images.
            span_bytes: How much to decode, about.

        Returns:
            False if there are none.
        """
        units = self._open_units()
        while units:
            sizes = self._layout.sizes_bytes
            span, num_bytes = [], 0
            for unit in units:
                span.append(unit)
                num_bytes += int(sizes[self._board.images_of(unit, unit + 1)].sum())
                if num_bytes >= span_bytes:
                    break
            with self._board.claim(span) as claimed:
                self._finish(claimed, decode)
            if claimed:
                return True
            units = units[len(span) :]
        return False

    def fill_all(
        self,
        decode: Decode,
        span_bytes: int,
        on_progress: Callable[[int], None],
    ) -> None:
        """Return when all images are there, decoded here or by others.

        Args:
            decode: Decodes images.
            span_bytes: How much to decode before looking what others do.
            on_progress: Called with the number of images that are there.
        """
        while self._open_units():
            if not self.fill(decode, span_bytes):
                time.sleep(_POLL_SECONDS)
            on_progress(self.num_ready)

    def _open_units(self) -> list[int]:
        """Return the units that have to be decoded still.

        On disk, units that were finished once are left for `require` to check: reading a file
        larger than memory only to check it would take minutes.
        """
        if self._board.is_full():
            return []
        is_open = ~self._board.ready_units()
        if self._checksums is not None:
            is_open &= ~self._checksums.is_recorded()
        return [int(unit) for unit in np.flatnonzero(is_open)]

    def _finish(self, units: list[int], decode: Decode) -> None:
        """Make the images of claimed units ready."""
        unfinished = [unit for unit in units if not self._is_finished(unit)]
        if not unfinished:
            return
        breaks = np.flatnonzero(np.diff(unfinished) > 1) + 1
        for start, stop in pairwise([0, *breaks.tolist(), len(unfinished)]):
            self._decode_run(unfinished[start], unfinished[stop - 1] + 1, decode)

    def _is_finished(self, unit: int) -> bool:
        images = self._board.images_of(unit, unit + 1)
        if self._board.is_ready(images):
            return True
        if self._checksums is None or not self._checksums.matches(unit, self._bytes_of(images)):
            return False
        self._board.set_ready(images)
        return True

    def _decode_singly(
        self, units: list[int], required: npt.NDArray[np.int64], decode: Decode
    ) -> None:
        """Decode required images of claimed units one by one, as one of a unit cannot be."""
        for position in self._board.missing(required).tolist():
            if self._board.units_of(np.array([position]))[0] in units:
                self._decode_images(slice(position, position + 1), decode)

    def _decode_run(self, first_unit: int, last_unit: int, decode: Decode) -> None:
        images = self._board.images_of(first_unit, last_unit)
        units = range(first_unit, last_unit)
        if self._checksums is None:
            self._decode_images(images, decode)
            return
        for unit in units:
            self._checksums.forget(unit)
        self._decode_images(images, decode)
        for unit in units:
            content = self._bytes_of(self._board.images_of(unit, unit + 1))
            self._checksums.record(unit, content)

    def _decode_images(self, images: slice, decode: Decode) -> None:
        marker = ReadyMarker(self._pixels, self._layout, images, self._board.set_ready)
        decode(np.arange(images.start, images.stop), marker)
        self._board.set_ready(images)  # also those that have no pixels to write

    def _bytes_of(self, images: slice) -> npt.NDArray[np.uint8]:
        start = int(self._layout.offsets[images.start])
        num_bytes = int(self._layout.sizes_bytes[images].sum())
        return self._images.block[start : start + num_bytes]
