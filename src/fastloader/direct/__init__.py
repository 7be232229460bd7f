"""Lets a CUDA device read the caller's data in host memory by itself."""

from fastloader.direct._driver import uncaptured
from fastloader.direct._host_rows import HostRows
from fastloader.direct._locked_memory import LockedMemory, locked_memory, unlock_memory

__all__ = ["HostRows", "LockedMemory", "locked_memory", "uncaptured", "unlock_memory"]
