"""Decoded images in memory of one process, until another one needs them."""

import mmap
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fastloader.cache._image_cache import ImageCache
from fastloader.cache._layout import PixelLayout
from fastloader.cache._meeting import HEADER_BYTES, Hold, hold
from fastloader.cache._open import open_shared_cache, shared_name
from fastloader.cache._packed import PackedImages
from fastloader.cache._pixel_bytes import PrivatePixels
from fastloader.direct import unlock_memory
from fastloader.shm import ArrayWriter, MemoryWriter, PrivateBlock, ProcessLock

__all__ = ["OwnImages", "find_own_images", "load_own_images"]

_LOOK_SECONDS = 1.0
"""Between two looks whether another process has the same images: each takes 10 us."""

_here: "weakref.WeakValueDictionary[str, OwnImages]" = weakref.WeakValueDictionary()


def load_own_images(
    name: str,
    layout: PixelLayout,
    edges: npt.NDArray[np.int64],
    decode: Callable[[ArrayWriter | MemoryWriter], None],
) -> "OwnImages | None":
    """Decode images into memory of this process, if no other one has them.

    Nobody sees them before all are there. Which is why this is for images that are decoded at
    once: a forked child would never get what comes after the fork.

    Args:
        name: Source and choice of the images, as for `open_shared_cache`.
        layout: Where each image lies.
        edges: First image of each unit, and last the number of images.
        decode: Decodes all images, with a function that puts pixels in their place.

    Returns:
        None if another process has them, or could not be told.

    Raises:
        SharedMemoryError: If the system has no such memory.
    """
    if not layout.num_bytes or HEADER_BYTES % mmap.PAGESIZE:  # parts of a file start at a page
        return None
    block = PrivateBlock(layout.num_bytes)
    full_name = shared_name(name, layout, edges)
    note = hold(full_name, block)
    if note is None:
        return None
    images = PackedImages(layout, PrivatePixels(block.view()))
    decode(images.pixels.writer())
    own = OwnImages(name, images, edges, block, note)
    _here[full_name] = own
    return own


def find_own_images(
    name: str, layout: PixelLayout, edges: npt.NDArray[np.int64]
) -> "OwnImages | None":
    """Return images that this process holds; arguments as for `load_own_images`."""
    return _here.get(shared_name(name, layout, edges)) if _here else None


class OwnImages:
    """Images that are all decoded, in huge pages, which only private memory gets.

    **Processes:** forked children have them, too. A pickle carries the memory file to which they
    are moved then, so that there is still one copy. Processes that inherit nothing and find no
    memory file make one; whoever has own images looks for it now and then, and once it is full
    uses it instead.
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_edges",
        "_hold",
        "_images",
        "_lock",
        "_name",
        "_next_look",
        "_shared",
    )

    def __init__(
        self,
        name: str,
        images: PackedImages,
        edges: npt.NDArray[np.int64],
        block: PrivateBlock,
        note: Hold,
    ) -> None:
        """Take images that are all there.

        Args:
            name: Source and choice of the images.
            images: Over the bytes of `block`.
            edges: First image of each unit, and last the number of images.
            block: Where they are.
            note: Tells of others that want them.
        """
        self._name = name
        self._images = images
        self._edges = edges
        self._block = block
        self._hold = note
        self._shared: ImageCache | None = None
        self._lock = ProcessLock()
        self._next_look = time.monotonic() + _LOOK_SECONDS

    def __reduce__(self) -> tuple[Callable[[ImageCache], ImageCache], tuple[ImageCache]]:
        return _as_it_is, (self.share(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # what is decoded does not change

    @property
    def images(self) -> PackedImages:
        """The pixels of all images."""
        return self._images

    @property
    def num_ready(self) -> int:
        """Number of images that are there: all."""
        return len(self._images)

    def require(
        self,
        positions: Sequence[int] | npt.NDArray[np.int64],  # noqa: ARG002 - all are there
        decode: object,  # noqa: ARG002
    ) -> None:
        """Return at once, but for a look whether another process has the images, too."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._join_others()

    def fill(self, decode: object, span_bytes: int) -> bool:  # noqa: ARG002
        """Return False: no image is left to decode."""
        return False

    def share(self) -> ImageCache:
        """Move the images to a memory file that other processes can map, and return it.

        Views of them stay valid, and there are never more than one copy and 64 MB.

        Raises:
            SharedMemoryError: If the system has no such memory.
        """
        with self._lock:
            if self._shared is None:
                self._shared = self._move(self._open_shared())
            return self._shared

    def _join_others(self) -> None:
        """Use the memory file of other processes if there is one and they have filled it."""
        with self._lock:
            if self._shared is None and self._hold.is_wanted():
                shared = self._open_shared()
                if shared.num_ready == len(self._images):
                    self._shared = self._move(shared)

    def _open_shared(self) -> ImageCache:
        # What is moved there leaves its place here: no more room is taken.
        return open_shared_cache(self._name, self._images.layout, self._edges, _need_nothing)

    def _move(self, shared: ImageCache) -> ImageCache:
        is_full = shared.num_ready == len(self._images)
        pixels = shared.pixels
        block = self._block.view()
        unlock_memory(block.ctypes.data, block.nbytes)  # or a device would keep the old pages
        self._block.move_to(pixels.file, pixels.start_bytes, is_written=is_full)
        shared.set_full()
        return shared


def _as_it_is(cache: ImageCache) -> ImageCache:
    return cache


def _need_nothing() -> None:
    pass
