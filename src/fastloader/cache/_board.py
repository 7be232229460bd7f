"""Which images are there, and which process is decoding what: told between processes."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from fastloader.shm import MemoryFile, ProcessLock

if sys.platform != "win32":
    import fcntl

__all__ = ["FillBoard"]


class FillBoard:
    """One flag for each image, set once its pixels are there, and claims on units of images.

    A unit is a run of images that are decoded together. Whoever decodes one claims it first,
    so that nobody does the same work; a claim ends with its process, however that ends.
    Claims save work and nothing else: two that decode one unit write the same bytes.

    **Processes:** all that have the memory file see the same flags and claims. Claims are locks
    of bytes (POSIX, fcntl(2)), one byte a unit; a system without them knows claims of threads
    only.
    """

    __slots__ = ("_edges", "_file", "_flags", "_is_full", "_lock", "_start_bytes", "_taken")

    def __init__(
        self, file: MemoryFile, start_bytes: int, edges: npt.NDArray[np.int64]
    ) -> None:
        """Lay flags over a part of a memory file.

        Args:
            file: Holds a byte for each image, 0 at first.
            start_bytes: Where the first flag is.
            edges: First image of each unit, and last the number of images.
        """
        self._file = file
        self._start_bytes = start_bytes
        self._edges = edges
        self._flags = np.frombuffer(file.map(), np.uint8, int(edges[-1]), start_bytes)
        self._is_full = False
        self._taken: set[int] = set()
        self._lock = ProcessLock(on_fork=self._taken.clear)

    def __reduce__(self) -> tuple[type["FillBoard"], tuple[Any, ...]]:
        return FillBoard, (self._file, self._start_bytes, self._edges)

    @property
    def num_units(self) -> int:
        """Number of units."""
        return len(self._edges) - 1

    @property
    def num_ready(self) -> int:
        """Number of images that are there."""
        return int(np.count_nonzero(self._flags))

    def images_of(self, first_unit: int, last_unit: int) -> slice:
        """Return the images of some units in a row.

        Args:
            first_unit: The first of them.
            last_unit: The one after the last.
        """
        return slice(int(self._edges[first_unit]), int(self._edges[last_unit]))

    def units_of(self, images: npt.NDArray[np.int64]) -> list[int]:
        """Return the units that have at least one of some images, ascending."""
        units = np.searchsorted(self._edges, images, "right") - 1
        return [int(unit) for unit in np.unique(units)]

    def is_full(self) -> bool:
        """Return True once all images are there."""
        if not self._is_full:
            self._is_full = bool(self._flags.all())
        return self._is_full

    def ready_units(self) -> npt.NDArray[np.bool_]:
        """Return which units have all their images, shape ``(num_units,)``."""
        if not self.num_units:
            return np.zeros(0, np.bool_)
        ready: npt.NDArray[np.uint8] = np.minimum.reduceat(self._flags, self._edges[:-1])
        return np.asarray(ready != 0)

    def missing(self, images: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of some images that are not there yet."""
        return np.asarray(images[self._flags[images] == 0])

    def is_ready(self, images: slice) -> bool:
        """Return True if all images of a run are there."""
        return bool(self._flags[images].all())

    def set_ready(self, images: slice | int) -> None:
        """Tell all processes that images are there; their pixels were written before."""
        self._flags[images] = 1

    @contextmanager
    def claim(self, units: Sequence[int]) -> Iterator[list[int]]:
        """Claim units while the block runs, as far as nobody else has them.

        Yields:
            Which of them are claimed now, in the same order.
        """
        claimed: list[int] = []
        try:
            claimed.extend(unit for unit in units if self._try_claim(unit))
            yield claimed
        finally:
            with self._lock:
                for unit in claimed:
                    self._taken.discard(unit)
                    _unlock_byte(self._file, unit)

    def _try_claim(self, unit: int) -> bool:
        with self._lock:
            if unit in self._taken or not _try_lock_byte(self._file, unit):
                return False
            self._taken.add(unit)
            return True


def _try_lock_byte(file: MemoryFile, position: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock_byte(file: MemoryFile, position: int) -> None:
    if sys.platform != "win32":
        fcntl.lockf(file.fileno(), fcntl.LOCK_UN, 1, position)
