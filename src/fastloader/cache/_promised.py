"""Memory that caches of this process will still take: their pages come as images are decoded."""

import os
import weakref

from fastloader.cache._image_cache import ImageCache

__all__ = ["promise", "promised_bytes"]

_promising: "weakref.WeakSet[ImageCache]" = weakref.WeakSet()


def promise(cache: ImageCache) -> None:
    """Count what a cache in memory will still take, for as long as there is one.

    Args:
        cache: Whose memory file has all its length, and takes memory where it was written to.
    """
    _promising.add(cache)


def promised_bytes() -> int:
    """Return the memory that caches will still take; that of several with one file is counted once."""
    missing: dict[tuple[int, int], int] = {}
    for cache in list(_promising):
        file = os.fstat(cache.pixels.file.fileno())
        missing[file.st_dev, file.st_ino] = cache.missing_bytes
    return sum(missing.values())
