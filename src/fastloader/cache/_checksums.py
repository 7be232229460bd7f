"""Checksums of the units of a file on disk: which of them are whole."""

import zlib
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from fastloader.errors import SharedMemoryError
from fastloader.shm import MemoryFile

__all__ = ["UnitChecksums"]

_IS_RECORDED = 1 << 32


class UnitChecksums:
    """A CRC-32 for each unit, recorded when all of its pixels were written.

    A unit without one was never finished; one that does not match was damaged, or reached the
    disk in part when the machine stopped.

    **Processes:** all that have the file see the same.
    """

    __slots__ = ("_file", "_num_units", "_records", "_start_bytes", "where")

    def __init__(self, file: MemoryFile, start_bytes: int, num_units: int, where: str) -> None:
        """Lay the records over a part of a file.

        Args:
            file: Holds 8 bytes for each unit, 0 at first.
            start_bytes: Where they start, a multiple of 8.
            num_units: Number of units.
            where: The file, for error messages.
        """
        self._file = file
        self.where = where
        """The file, for error messages."""
        self._start_bytes = start_bytes
        self._num_units = num_units
        self._records = np.frombuffer(file.map(), np.uint64, num_units, start_bytes)

    def __reduce__(self) -> tuple[type["UnitChecksums"], tuple[object, ...]]:
        return UnitChecksums, (self._file, self._start_bytes, self._num_units, self.where)

    def is_recorded(self) -> npt.NDArray[np.bool_]:
        """Return which units were finished once, shape ``(num_units,)``."""
        return np.asarray(self._records != 0)

    def matches(self, unit: int, content: npt.NDArray[np.uint8]) -> bool:
        """Return True if a unit was finished and its bytes are still the same."""
        record = int(self._records[unit])
        return record != 0 and record == zlib.crc32(content.data) | _IS_RECORDED

    def record(self, unit: int, content: npt.NDArray[np.uint8]) -> None:
        """Note that a unit is finished.

        Raises:
            SharedMemoryError: If the disk is full.
        """
        self._write(unit, zlib.crc32(content.data) | _IS_RECORDED)

    def forget(self, unit: int) -> None:
        """Note that a unit is about to be written anew.

        Raises:
            SharedMemoryError: If the file is only to be read, or the disk is full.
        """
        if self._file.is_read_only:
            self._refuse()
        self._write(unit, 0)

    def check_usable(self) -> None:
        """Check that what is only to be read was finished.

        Raises:
            SharedMemoryError: If it was not.
        """
        if self._file.is_read_only and not self.is_recorded().all():
            self._refuse()

    def _write(self, unit: int, record: int) -> None:
        # Not through the mapping: on a full disk that ends the process.
        content = np.array([record], np.uint64).data.cast("B")
        self._file.write(self._start_bytes + self._records.itemsize * unit, content)

    def _refuse(self) -> NoReturn:
        raise SharedMemoryError(
            f"The cache file {self.where} cannot be written to, and a part of it is damaged or "
            f"was never finished: delete it, or choose another folder with cache_dir=, or the "
            f"environment variable FASTLOADER_CACHE_DIR."
        )
