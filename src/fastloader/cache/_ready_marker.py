"""Notices when all bytes of an image have been written, whatever the order of the writes."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fastloader.cache._layout import PixelLayout
from fastloader.cache._pixel_bytes import FilePixels
from fastloader.shm import MemoryWriter

__all__ = ["ReadyMarker"]


class ReadyMarker(MemoryWriter):
    """Writes pixels of a run of images and tells as soon as one of them is complete.

    A source writes each byte of an image once, in any order and from any thread; images of a
    stream are complete long before the run is. What is written through a `view` is not counted.
    """

    def __init__(
        self,
        pixels: FilePixels,
        layout: PixelLayout,
        images: slice,
        set_ready: Callable[[slice], None],
    ) -> None:
        """Start with no image complete.

        Args:
            pixels: Where the pixels go.
            layout: Where each image lies.
            images: The run.
            set_ready: Called with each run of images that is complete.
        """
        super().__init__(pixels.file, pixels.start_bytes, has_room=pixels.has_room)
        self._first = images.start
        self._starts = layout.offsets[images]
        self._missing_bytes = layout.content_bytes[images].copy()
        self._stops = self._starts + self._missing_bytes
        self._set_ready = set_ready
        self._lock = threading.Lock()

    def __call__(self, offset_bytes: int, array: npt.NDArray[Any]) -> None:
        """Put pixels in their place, of one image or of several that follow each other.

        Args:
            offset_bytes: Position of the first.
            array: Pixels of the images' own type, contiguous.
        """
        super().__call__(offset_bytes, array)
        stop_bytes = offset_bytes + array.nbytes
        first = int(np.searchsorted(self._starts, offset_bytes, "right")) - 1
        last = int(np.searchsorted(self._starts, stop_bytes, "left"))
        written = np.minimum(self._stops[first:last], stop_bytes) - np.maximum(
            self._starts[first:last], offset_bytes
        )
        with self._lock:
            self._missing_bytes[first:last] -= written
            is_complete = self._missing_bytes[first:last] == 0
        if is_complete.all():
            self._set_ready(slice(self._first + first, self._first + last))
            return
        for image in np.flatnonzero(is_complete).tolist():
            at = self._first + first + image
            self._set_ready(slice(at, at + 1))
