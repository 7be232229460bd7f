"""Memory shared between processes: bytes, no tensors and no images."""

from fastloader.shm._array_writer import ArrayWriter
from fastloader.shm._memory_file import (
    MemoryFile,
    can_send_memory_files,
    collecting_memory_files,
    providing_memory_files,
)
from fastloader.shm._memory_writer import MemoryWriter
from fastloader.shm._private_block import PrivateBlock, gives_huge_pages
from fastloader.shm._process_lock import ProcessLock

__all__ = [
    "ArrayWriter",
    "MemoryFile",
    "MemoryWriter",
    "PrivateBlock",
    "ProcessLock",
    "can_send_memory_files",
    "collecting_memory_files",
    "gives_huge_pages",
    "providing_memory_files",
]
