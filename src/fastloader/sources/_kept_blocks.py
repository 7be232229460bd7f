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
    _used_bytes: ClassVar[int] = 0
    """Of all these, to be known without a look at each: there may be thousands."""
    _has_gone: ClassVar[bool] = False
    """Whether some of them have gone with their file."""

    def __init__(self) -> None:
        """Start without any."""
        self._serial = next(self._serials)
        self._blocks = _Blocks()
        self._owner = weakref.ref(self._blocks, self._note_gone)

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
            if (self._serial, key) in self._used:
                self._let_go((self._serial, key))
            size = num_bytes + self.block_bytes
            if size > self.max_bytes:
                return
            self._used[self._serial, key] = self._owner, size
            self._blocks[key] = block
            KeptBlocks._used_bytes += size
            if self._has_gone:
                KeptBlocks._has_gone = False
                for used in [
                    used for used, (owner, _) in self._used.items() if owner() is None
                ]:
                    self._let_go(used)
            while self._used_bytes > self.max_bytes:
                self._let_go(next(iter(self._used)))

    def clear(self) -> None:
        """Let go of all blocks of this file."""
        with _LOCK:
            for key in tuple(self._blocks):
                self._let_go((self._serial, key))

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
            cls._used_bytes = 0

    @classmethod
    def _let_go(cls, used: tuple[int, Hashable]) -> None:
        owner, size = cls._used.pop(used)
        cls._used_bytes -= size
        if (blocks := owner()) is not None:
            blocks.pop(used[1], None)  # not there if Ctrl-C came while it was put

    @classmethod
    def _note_gone(cls, _owner: "weakref.ref[_Blocks]") -> None:
        cls._has_gone = True  # without the lock: this may be called wherever memory is freed


_LOCK = ProcessLock(on_fork=KeptBlocks.forget_all)
