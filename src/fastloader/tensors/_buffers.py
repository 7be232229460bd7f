"""Where the tensors of a batch are allocated: asked for here, decided by the loader."""

import ctypes
import math
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from fastloader.shm._past_cache import LEAST_BYTES

__all__ = [
    "Allocator",
    "BufferPool",
    "allocating_scratch",
    "allocating_with",
    "empty_batch",
]

Allocator: TypeAlias = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Makes an uninitialised contiguous CPU tensor of a shape and dtype."""


class _Current(threading.local):
    allocator: Allocator | None = None


_current = _Current()


def empty_batch(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised CPU tensor for an output of `BatchedDataset.get_batch`.

    Inside a loader the memory is reused, shared or pinned as the loader needs it; outside
    one this is `torch.empty`.

    Args:
        shape: Sizes of all axes, the batch axis first.
        dtype: Element type.
    """
    allocator = _current.allocator
    if allocator is None:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return allocator(shape, dtype)


class allocating_with:  # noqa: N801 - used like a function
    """Let `empty_batch` use `allocator` in this thread while the block runs.

    A class, since a generator's context takes several times as long, and each batch needs one.

    Args:
        allocator: None stands for `torch.empty`.
    """

    __slots__ = ("_allocator", "_previous")

    def __init__(self, allocator: Allocator | None) -> None:
        self._allocator = allocator

    def __enter__(self) -> None:
        self._previous = _current.allocator
        _current.allocator = self._allocator

    def __exit__(self, *_error: object) -> None:
        _current.allocator = self._previous


_HUGE_PAGE_BYTES = 2 * 1024 * 1024

_SMALL_BYTES = _HUGE_PAGE_BYTES
"""Below this size `torch.empty` is cheaper than a buffer of the pool: the C library keeps what it
got back, and a buffer costs 5 us by itself, ten times that where the caches are cold."""

_IDLE_BYTES = 128 * 1024 * 1024
"""Idle memory that a size class may hold, unless that is under four buffers."""


class _Lent(weakref.ref["ctypes.Array[ctypes.c_char]"]):
    """Gives a buffer back when nobody refers to what views it any more.

    As `weakref.finalize` would, at a quarter of its cost for each batch; nothing is left to do at the
    interpreter's end.
    """

    __slots__ = ("buffer", "idle")

    idle: deque[mmap.mmap]
    buffer: mmap.mmap

    def give_back(self) -> None:
        del _lent[id(self)]
        self.idle.append(self.buffer)


_lent: Final[dict[int, _Lent]] = {}
"""All that are in use: a reference that is gone itself tells nothing."""


class BufferPool:
    """Memory that is used again once nobody looks at it: an `Allocator`.

    A new batch of 77 MB costs some 19,000 page faults, far more than writing it; the pool
    pays them once. A buffer comes back when the last tensor, view or array over it is gone,
    so the caller may keep batches as long as they like: the pool then makes more buffers,
    nothing waits and nothing is overwritten.

    A batch that finds none of its size takes an idle one of up to twice that: the last batch of an
    epoch is smaller, and 100 MB for it alone would be 25,000 more page faults of the first epoch.

    Idle buffers are few: per size at most `_IDLE_BYTES` or four, and `trim` frees the sizes
    that are no longer asked for. A pool that is pickled or copied arrives empty.

    Args:
        requests_between_trims: After so many requests the pool calls `trim` itself; None:
            never.

    **Processes:** the memory is private to the process; a forked child gets copies.
    **Threads:** any thread may allocate, and any thread may drop the last tensor.
    """

    stacked_bytes = LEAST_BYTES
    """Torch stacks samples to less than this as fast, or faster, without the pool, as the C library keeps so much memory:
    8 samples of 1 MB, of no cost, in 0.85 of the time with 16 threads. What is larger goes past the cache."""

    def __init__(self, *, requests_between_trims: int | None = None) -> None:
        self._requests_between_trims = requests_between_trims
        self._num_requests = 0
        # Finalizers run in any thread at any time, also within the methods below: they may
        # only append. Appending to a full deque drops its oldest buffer, which frees it.
        self._idle: dict[int, deque[mmap.mmap]] = {}
        self._asked: set[int] = set()
        self._num_made = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), requests_between_trims=self._requests_between_trims), ()

    @property
    def num_made(self) -> int:
        """How many buffers were allocated from the system so far."""
        return self._num_made

    @property
    def idle_bytes(self) -> int:
        """Bytes in buffers that nobody uses at the moment."""
        return sum(size * len(idle) for size, idle in tuple(self._idle.items()))

    def __call__(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised contiguous CPU tensor; small ones come from `torch.empty`.

        Args:
            shape: Sizes of all axes.
            dtype: Element type.
        """
        shape = tuple(shape)
        num_elements = math.prod(shape)
        num_bytes = num_elements * dtype.itemsize
        if num_bytes < _SMALL_BYTES:
            return torch.empty(shape, dtype=dtype, device="cpu")
        size = _size_class(num_bytes)
        self._num_requests += 1
        if self._requests_between_trims and self._num_requests > self._requests_between_trims:
            self._num_requests = 0
            self.trim()
        self._asked.add(size)
        idle = self._idle.get(size)
        if idle is None:
            # setdefault is one step of the interpreter: two threads get the same deque.
            idle = self._idle.setdefault(size, deque(maxlen=max(4, _IDLE_BYTES // size)))
        try:
            buffer = idle.pop()  # last in, first out: its pages are the warmest
        except IndexError:
            borrowed = self._borrow(size)
            if borrowed is None:
                buffer = _map_memory(size)
                self._num_made += 1
            else:
                idle, buffer = borrowed
        # All tensors over the buffer hold this object, however they were made.
        holder = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        lent = _Lent(holder, _Lent.give_back)
        lent.idle, lent.buffer = idle, buffer
        _lent[id(lent)] = lent
        return torch.frombuffer(holder, dtype=dtype, count=num_elements).view(shape)

    def _borrow(self, size: int) -> tuple[deque[mmap.mmap], mmap.mmap] | None:
        """Return a larger buffer that is idle, and where it belongs: an epoch's last batch is smaller."""
        for larger in sorted(other for other in tuple(self._idle) if size < other <= 2 * size):
            idle = self._idle.get(larger)
            with suppress(IndexError):
                if idle is not None:
                    self._asked.add(larger)
                    return idle, idle.pop()
        return None

    def trim(self) -> None:
        """Free idle buffers of sizes that were not asked for since the last call."""
        asked, self._asked = self._asked, set()
        for size in tuple(self._idle):
            if size not in asked:
                self._idle.pop(size, None)


_scratch: Final = BufferPool(requests_between_trims=256)


@contextmanager
def allocating_scratch() -> Iterator[None]:
    """Let `empty_batch` use memory that is kept from call to call while the block runs.

    For what lies between two steps: it does not take the room of what is delivered, and costs
    no page faults. What was not asked for lately is given back.
    """
    with allocating_with(_scratch):
        yield


def _size_class(num_bytes: int) -> int:
    """Round up, by at most an eighth, so that batches of nearly equal size share buffers."""
    step = max(mmap.PAGESIZE, 1 << max(0, (num_bytes - 1).bit_length() - 4))
    return -(-num_bytes // step) * step


def _map_memory(size: int) -> mmap.mmap:
    """Map private memory of `size` bytes, in huge pages where the system has them."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):  # Windows
        return mmap.mmap(-1, size)
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer
