"""Slots of one memory file, lent to workers with their tasks and given back by finalizers."""

import ctypes
import mmap
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from fastloader.shm._memory_file import MemoryFile

__all__ = ["Arena", "ArenaView", "Lease", "Pin", "Slot", "SlotPlace"]

PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
FIRST_SLOT_BYTES = 1 << 20  # address space alone: pages are taken when they are written
LARGEST_SHARED_EXTENT_BYTES = 64 << 20
FEWEST_SPARE = 2  # who has so many free slots gives one to whoever has none
SLACK = 17 / 16  # lets batches of slightly uneven size settle on one slot size
MADV_REMOVE = getattr(mmap, "MADV_REMOVE", None)
MADV_POPULATE_WRITE = 23  # of Linux 5.14; not in `mmap`

Lease: TypeAlias = "ctypes.Array[ctypes.c_char]"
"""Buffer over a slot. The slot returns to its arena when the last user of the buffer is gone."""


class SlotPlace(NamedTuple):
    """Where a slot lies in the arena's file: what crosses to a worker."""

    extent_offset_bytes: int
    extent_size_bytes: int
    offset_bytes: int
    """From the start of the extent."""
    size_bytes: int


Pin: TypeAlias = Callable[[int, int], Callable[[], None]]
"""Locks memory at an address and of a size in bytes; what it returns unlocks it."""


class _Extent:
    """A part of the arena's file that is mapped, and locked, as one."""

    def __init__(
        self, file: MemoryFile, offset_bytes: int, size_bytes: int, pin: Pin | None
    ) -> None:
        self.mapping = mmap.mmap(file.fileno(), size_bytes, offset=offset_bytes)
        self._size_bytes = size_bytes
        self._pin = pin
        self._unpin: Callable[[], None] | None = None

    def lock(self) -> None:
        """Lock the memory, once, if it is to be locked."""
        if self._pin is not None and self._unpin is None:
            address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
            self._unpin = self._pin(address, self._size_bytes)

    def __del__(self) -> None:
        # Slots hold their extent and finalizers of leases hold their slot: nobody looks here
        # any more, and the memory is still mapped.
        if getattr(self, "_unpin", None) is not None:
            self._unpin()  # type: ignore[misc]


class Slot:
    """A part of the arena in this process; holds one batch at a time."""

    __slots__ = ("_extent", "is_new_to_user", "place", "user", "users", "was_leased")

    def __init__(self, extent: _Extent, place: SlotPlace) -> None:
        self._extent = extent
        self.place = place
        self.user = 0
        """Who writes to it, by a number of the owner's choice."""
        self.users: set[int] = set()
        """All who have written to it."""
        self.is_new_to_user = True
        """Whether its user had not written to it before it was lent: that takes far longer."""
        self.was_leased = False

    def buffer(self) -> Lease:
        """Return a new buffer over the slot's bytes."""
        place = self.place
        return (ctypes.c_char * place.size_bytes).from_buffer(
            self._extent.mapping, place.offset_bytes
        )

    def lock(self) -> None:
        """Lock the memory around, if it is to be locked and is not yet."""
        self._extent.lock()

    def copy(self, size_bytes: int) -> bytearray:
        """Return a copy of the first bytes."""
        start = self.place.offset_bytes
        return bytearray(memoryview(self._extent.mapping)[start : start + size_bytes])

    def release_pages(self) -> None:
        """Give the slot's memory back to the system; its address space stays.

        The file keeps its length and the hole takes no memory. Elsewhere than on Linux the
        pages stay until the arena is closed.
        """
        if MADV_REMOVE is not None:
            place = self.place
            self._extent.mapping.madvise(MADV_REMOVE, place.offset_bytes, place.size_bytes)


class Arena:
    """Slots of equal size, made as they are needed and used again, last in first out.

    Whoever writes to slots gets those it has written to before: a process that writes to
    memory for the first time pays a page fault for every 4 kB of it, about as much as the
    copy itself, whoever else has written there already (77 MB in 22 ms, written in 13).

    A slot is *lent* with a task and comes back in one of two ways: by `give_back` at once, or
    by `lease`, whose buffer gives it back when nothing refers to it any more. Nobody waits for
    a slot: while all are in use, `lend` makes another. Slots are cut from extents, one mapping
    each, so that a hundred thousand kept batches do not take as many mappings.

    The first page is for the owner's own use: see `ArenaView.control`.

    Args:
        pin: Locks each extent when the second batch of a slot in it is handed out, so that a
            device can read it without a copy. Locking takes as long as a copy of memory that is
            not locked, and several times as long while workers write to fresh memory, as they do
            at first: in a short run it would never pay. Memory that is locked is not given back
            before its extent is gone.

    **Processes:** made and closed by the consumer of the batches; workers map the same file
    through `ArenaView`. Finalizers of leases run in any thread and only append to a deque.
    """

    def __init__(self, pin: Pin | None = None) -> None:
        self.file = MemoryFile.create(PAGE_BYTES)
        self._pin = pin
        self.is_locked = pin is not None
        """Whether slots lie in page-locked memory, or will when they are used again."""
        self.slot_bytes = FIRST_SLOT_BYTES
        self.num_slots = 0
        """Slots with memory: free, lent, or under batches that somebody keeps."""
        self._end_bytes = PAGE_BYTES
        self._free: dict[int, deque[Slot]] = {}  # by user
        self._unused: list[Slot] = []  # of the newest extent: never lent, so without pages

    @property
    def num_free(self) -> int:
        """Slots with memory that wait for a task."""
        return sum(map(len, self._free.values()))

    def require(self, size_bytes: int) -> None:
        """Make slots of at least `size_bytes` from now on; smaller ones go as they are met."""
        if size_bytes > self.slot_bytes:
            self.slot_bytes = _whole_pages(int(size_bytes * SLACK))
            self._unused.clear()

    def lend(self, user: int = 0) -> Slot:
        """Return a slot of at least `slot_bytes`: a free one, else a new one.

        Args:
            user: Who is to write to it.
        """
        slot = self._take_free(user)
        if slot is None:
            if not self._unused:
                self._extend()
            self.num_slots += 1
            slot = self._unused.pop()
        slot.user = user
        slot.is_new_to_user = user not in slot.users
        slot.users.add(user)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Take back a slot that no batch lies in; safe in any thread, and when closed."""
        free = self._free.get(slot.user)
        if free is not None:
            free.append(slot)

    def lease(self, slot: Slot) -> Lease:
        """Return a buffer over a lent slot that gives the slot back when it is gone."""
        if slot.was_leased:
            slot.lock()
        slot.was_leased = True
        buffer = slot.buffer()
        # At exit the process's memory goes as a whole: finalizers would only cost time.
        weakref.finalize(buffer, self._free[slot.user].append, slot).atexit = False
        return buffer

    def trim(self, num_kept: int) -> None:
        """Give the memory of free slots beyond `num_kept` back to the system."""
        while self.num_free > num_kept:
            self._drop(max(self._free.values(), key=len).popleft())

    def close(self) -> None:
        """Give the descriptor and free slots back; leased ones live until they are dropped."""
        self._unused.clear()
        self._free.clear()
        self.file.close()

    def _take_free(self, user: int) -> Slot | None:
        """Return the user's own newest slot, or one of another user who has several."""
        own = self._free.setdefault(user, deque())
        while True:  # only this thread takes slots out
            slot = own.pop() if own else self._take_spare(user)
            if slot is None or slot.place.size_bytes >= self.slot_bytes:
                return slot
            self._drop(slot)

    def _take_spare(self, user: int) -> Slot | None:
        """Return a slot that its user can spare: one that is known to whoever wants it, or the oldest."""
        spare = [free for free in self._free.values() if len(free) >= FEWEST_SPARE]
        for free in spare:
            for number in range(len(free)):  # others may come back meanwhile
                slot = free[number]
                if user in slot.users:
                    del free[number]
                    return slot
        return max(spare, key=len).popleft() if spare else None

    def _extend(self) -> None:
        shared = min(self.num_slots, LARGEST_SHARED_EXTENT_BYTES // self.slot_bytes)
        count = max(1, shared)
        offset, size = self._end_bytes, count * self.slot_bytes
        self.file.resize(offset + size)
        extent = _Extent(self.file, offset, size, self._pin)
        self._end_bytes += size
        self._unused = [
            Slot(extent, SlotPlace(offset, size, number * self.slot_bytes, self.slot_bytes))
            for number in reversed(range(count))
        ]

    def _drop(self, slot: Slot) -> None:
        if self._pin is None:
            slot.release_pages()
        self.num_slots -= 1


class ArenaView:
    """An arena as a worker sees it.

    **Processes:** one in each worker, over the file that the consumer made.
    """

    def __init__(self, file: MemoryFile) -> None:
        self._file = file
        self._extents: dict[int, mmap.mmap] = {}
        self._populated: set[int] = set()  # slots, by where they begin in the file
        self._newest_slot_bytes = 0
        self.control = mmap.mmap(file.fileno(), PAGE_BYTES)
        """The first page: what the owner tells its workers without a message."""

    def slot(self, place: SlotPlace) -> memoryview:
        """Return the bytes of a slot, to be written to."""
        extent = self._extents.get(place.extent_offset_bytes)
        if extent is None:
            if place.size_bytes > self._newest_slot_bytes:
                # The arena lends no smaller slots any more.
                self._newest_slot_bytes = place.size_bytes
                self.forget_slots()
            extent = mmap.mmap(
                self._file.fileno(), place.extent_size_bytes, offset=place.extent_offset_bytes
            )
            self._extents[place.extent_offset_bytes] = extent
        if place.size_bytes > FIRST_SLOT_BYTES:  # made for batches of this size
            self._populate(extent, place)
        return memoryview(extent)[place.offset_bytes : place.offset_bytes + place.size_bytes]

    def forget_slots(self) -> None:
        """Map slots anew when they come again: something else is at their addresses now."""
        self._extents.clear()
        self._populated.clear()

    def _populate(self, extent: mmap.mmap, place: SlotPlace) -> None:
        """Ask for all pages of a slot at once: faulting in one after the other takes longer."""
        start = place.extent_offset_bytes + place.offset_bytes
        if start not in self._populated:
            self._populated.add(start)
            with suppress(OSError, ValueError):  # an older kernel, or no Linux
                extent.madvise(MADV_POPULATE_WRITE, place.offset_bytes, place.size_bytes)


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
