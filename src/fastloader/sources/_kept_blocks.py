"""What was decoded last, for whoever asks for more of it."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, TypeAlias

from fastloader.shm import ProcessLock

__all__ = ["KEPT", "KEPT_BYTES", "BlockKey", "KeptBlocks"]

KEPT_BYTES = 64 << 20
"""Of a process, whatever tables it reads."""

BlockKey: TypeAlias = tuple[str, Hashable]
"""File and version of it, and which part of the file."""


class KeptBlocks:
    """Decoded parts of files, those that were used last, up to a number of bytes.

    Some formats decode many rows to give one. Where rows near each other are wanted one after
    the other, or a table is small, that need not be done again each time.

    **Processes:** a forked child begins without any, as they are its parent's memory.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        """Start without any.

        Args:
            max_bytes: Most bytes to keep.
        """
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._blocks: OrderedDict[BlockKey, tuple[Any, int]] = OrderedDict()
        self._lock = ProcessLock(on_fork=self._forget)

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept."""
        return self._num_bytes

    def get(self, key: BlockKey) -> Any:
        """Return a block, None if it is not kept; it is the last to be let go of.

        Args:
            key: As it was put.
        """
        with self._lock:
            if key not in self._blocks:
                return None
            self._blocks.move_to_end(key)
            return self._blocks[key][0]

    def put(self, key: BlockKey, block: Any, num_bytes: int) -> None:
        """Keep a block, and let go of those that were not used for longest.

        Args:
            key: What to ask for it by.
            block: May be used by several threads at once.
            num_bytes: What it takes, now or in the end.
        """
        with self._lock:
            self._remove(key)
            if num_bytes > self._max_bytes:
                return
            self._blocks[key] = block, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                self._remove(next(iter(self._blocks)))

    def drop(self, file: str) -> None:
        """Let go of all blocks of a file.

        Args:
            file: First part of their keys.
        """
        with self._lock:
            for key in [key for key in self._blocks if key[0] == file]:
                self._remove(key)

    def _remove(self, key: BlockKey) -> None:
        _, num_bytes = self._blocks.pop(key, (None, 0))
        self._num_bytes -= num_bytes

    def _forget(self) -> None:
        self._blocks.clear()
        self._num_bytes = 0


KEPT = KeptBlocks()
"""Those of this process."""
