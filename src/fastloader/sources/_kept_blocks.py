"""What was decoded last, for whoever asks for more of it."""

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Any, ClassVar

from fastloader.shm import ProcessLock

__all__ = ["KeptBlocks"]


class _Blocks(dict[Hashable, Any]):
    """Blocks by key, which can be referred to weakly."""


class KeptBlocks:
    """Decoded parts of a file: of all files together those that were used last.

    Some formats decode many rows to give one. Where rows near each other are wanted one after
    the other, or a table is small, that need not be done again each time.

    **Processes:** a forked child and whoever unpickles this begin without any block.
    """

    max_bytes: ClassVar[int] = 64 << 20
    """Most bytes that a process keeps, whatever tables it reads."""
    block_bytes: ClassVar[int] = 16 << 10
    """What a block takes beside its content, about: there may be thousands of small ones."""
    _serials: ClassVar[Iterator[int]] = count()
    _used: ClassVar[OrderedDict[tuple[int, Hashable], tuple["weakref.ref[_Blocks]", int]]] = (
        OrderedDict()
    )
    """Whose each block is, and its bytes, those that were used last at the end."""

    def __init__(self) -> None:
        """Start without any."""
        self._serial = next(self._serials)
        self._blocks = _Blocks()

    def __reduce__(self) -> tuple[type["KeptBlocks"], tuple[()]]:
        return KeptBlocks, ()

    def get(self, key: Hashable) -> Any:
        """Return a block, None if it is not kept; it is the last to be let go of.

        Args:
            key: As it was put.
        """
        with _LOCK:
            if key in self._blocks:
                self._used.move_to_end((self._serial, key))
            return self._blocks.get(key)

    def put(self, key: Hashable, block: Any, num_bytes: int) -> None:
        """Keep a block, and let go of those that were not used for longest.

        Args:
            key: What to ask for it by.
            block: May be used by several threads at once.
            num_bytes: What its content takes, now or in the end.
        """
        with _LOCK:
            self._used.pop((self._serial, key), None)
            self._blocks.pop(key, None)
            size = num_bytes + self.block_bytes
            if size > self.max_bytes:
                return
            self._used[self._serial, key] = weakref.ref(self._blocks), size
            self._blocks[key] = block
            for used, (blocks, _) in list(self._used.items()):
                if blocks() is None:  # gone with its file
                    del self._used[used]
            while self.kept_bytes() > self.max_bytes:
                (_, oldest), (blocks, _) = self._used.popitem(last=False)
                (blocks() or _Blocks()).pop(oldest, None)

    def clear(self) -> None:
        """Let go of all blocks of this file."""
        with _LOCK:
            for key in self._blocks:
                del self._used[self._serial, key]
            self._blocks.clear()

    @classmethod
    def kept_bytes(cls) -> int:
        """Return how many bytes this process keeps."""
        return sum(size for blocks, size in cls._used.values() if blocks() is not None)

    @classmethod
    def forget_all(cls) -> None:
        """Let go of the blocks of all files."""
        with _LOCK:
            for blocks, _ in cls._used.values():
                (blocks() or _Blocks()).clear()
            cls._used.clear()


_LOCK = ProcessLock(on_fork=KeptBlocks.forget_all)
