"""Memory of the caller's data, locked so that a CUDA device can read it by itself."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch

from fastloader.direct._cuda_error import CudaCallError
from fastloader.direct._driver import uncaptured
from fastloader.direct._memory_maps import read_mappings
from fastloader.direct._row_kernel import prepare_kernels, read_rows
from fastloader.machine._machine import read_machine

__all__ = ["LockedMemory", "locked_memory", "unlock_memory"]

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices
_MOST_VAIN = 3
"""Times that it was locked for too short a time: somebody who forks before each epoch would have it done for
nothing."""

_WORTH = 20
"""Times as long as locking took that memory should stay locked."""


class LockedMemory:
    """The memory behind a tensor, locked for copies to CUDA devices while that can be.

    It is locked in the background, at some 20 GB/s, and unlocked when this object is gone or, if
    it belongs to this process alone, when that forks: a child would be given a copy of each
    locked page at once, needed or not.

    Not locked is what lies in a file (its pages would have to be read, and those mapped to be
    written to copied), what a parent or child has as well (it would be copied), and more than
    what is free of the machine's memory, for each of its ranks: locked pages can neither be
    swapped nor moved.

    **Processes:** a forked child has the object, and nothing locked.
    **Threads:** any.

    Args:
        tensor: On the CPU; it is kept, and cannot be resized any more.
        device: A CUDA device, with its index.
    """

    def __init__(self, tensor: torch.Tensor, device: torch.device) -> None:
        whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(
            tensor.detach().untyped_storage()
        )
        # An array over it forbids torch to give the storage other memory.
        self._bytes: npt.NDArray[np.uint8] = whole.numpy()
        self.start = self._bytes.ctypes.data
        """First address."""
        self.stop = self.start + self._bytes.nbytes
        """Address after the last."""
        self._device = device
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._num_vain = 0
        self._lock_seconds = self._locked_at = 0.0
        self._events: dict[int, Any] = {}
        # Of its first byte alone a neighbour in the same page would tell.
        places = (0, len(whole) // 2, len(whole) - 1)
        self._is_locked_by_user = all(whole[at : at + 1].is_pinned() for at in places)
        self._is_copied_by_fork = not self._is_locked_by_user
        self.is_locked = False
        """Whether the device can read it."""
        self.obstacle: str | None = None
        """Why it is not locked, though that was tried."""

    def lock_behind(self) -> None:
        """Start to lock it in the background, unless it is locked or that was tried enough."""
        if self._thread is not None and self._thread.is_alive():
            return  # and has the lock
        with self._lock:
            if self.is_locked or self._num_vain == _MOST_VAIN:
                return
            self._thread = threading.Thread(target=self.lock, name="fastloader-lock")
            self._thread.start()

    def lock(self) -> None:
        """Lock it, or say in `obstacle` why not."""
        with self._lock:
            if self.is_locked:
                return
            began = time.monotonic()
            try:
                with uncaptured(), torch.cuda.device(self._device):
                    self._lock_here()
            except (CudaCallError, torch.cuda.CudaError) as error:
                self.obstacle = f"CUDA does not allow it: {error}"
            if not self.is_locked:
                self._num_vain += 1
            self._locked_at = time.monotonic()
            self._lock_seconds = self._locked_at - began

    def copy_rows(
        self,
        rows: int,
        stride_bytes: int,
        positions: npt.NDArray[np.int64],
        target: torch.Tensor,
    ) -> bool:
        """Queue copies of rows to the first axis of a tensor, on the current stream.

        Args:
            rows: Address of row 0, within this memory.
            stride_bytes: From each row to the next.
            positions: Which rows, all within this memory, shape ``(B,)``; at least one.
            target: Contiguous, on a CUDA device, which is current, shape ``(B, ...)``.

        Returns:
            False if it can be read no more: nothing was queued.
        """
        host = torch.from_numpy(positions).pin_memory()
        on_device = host.to(target.device, non_blocking=True)
        stream = torch.cuda.current_stream(target.device)
        with self._lock:
            try:
                if not self.is_locked:
                    return False
                read_rows(rows, stride_bytes, on_device, target, stream)
            except CudaCallError as error:
                self._unlock()
                self._num_vain, self.obstacle = _MOST_VAIN, str(error)
                return False
            self._note_read(stream)
        return True

    def unlock(self) -> None:
        """Unlock it, after the copies that have begun; it can be locked again."""
        with self._lock:
            self._unlock()

    def pause(self) -> None:
        """Unlock what a child would get a copy of; nobody can lock it until `go_on`."""
        self._lock.acquire()
        if self._is_copied_by_fork:
            if self.is_locked:
                is_vain = time.monotonic() - self._locked_at < _WORTH * self._lock_seconds
                self._num_vain += is_vain
            self._unlock()

    def go_on(self) -> None:
        """Let it be locked again; called in the thread that has called `pause`."""
        self._lock.release()

    def _note_read(self, stream: Any) -> None:
        """Have `unlock` wait for what was queued on a stream by now."""
        handle = stream.cuda_stream
        if handle not in self._events:
            self._events[handle] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._events[handle].record(stream)

    def _lock_here(self) -> None:
        """Lock it, or say why not.

        Raises:
            CudaCallError: If there is no kernel to read it.
            CudaError: If it cannot be locked.
        """
        self.obstacle = None if self._is_locked_by_user else self._find_obstacle()
        if self.obstacle is not None:
            return
        prepare_kernels(self._device)
        if not self._is_locked_by_user:
            size_bytes = self.stop - self.start
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(runtime.cudaHostRegister(self.start, size_bytes, _PORTABLE))
        self.is_locked = True

    def _find_obstacle(self) -> str | None:
        size_bytes = self.stop - self.start
        try:
            mappings = read_mappings(self.start, self.stop)
        except OSError as error:
            return f"the system does not tell what memory it is ({error})"
        self._is_copied_by_fork = any(mapping.is_private for mapping in mappings)
        for mapping in mappings:
            if mapping.file is not None:
                return f"it lies in a file ({mapping.file})"
            if mapping.is_private and mapping.common_bytes > size_bytes // 16:
                return "other processes have the same pages, which locking them would copy"
        machine = read_machine()
        most_bytes = machine.available_bytes // machine.local_world_size
        if size_bytes > most_bytes:
            return (
                f"it takes {size_bytes / 1e9:.1f} GB, more than the {most_bytes / 1e9:.1f} GB "
                "that are free for each rank"
            )
        return None

    def _unlock(self) -> None:
        if not self.is_locked:
            return
        self.is_locked = False
        with uncaptured():
            for event in self._events.values():
                event.synchronize()
            self._events.clear()
            if not self._is_locked_by_user:
                runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                runtime.cudaHostUnregister(self.start)

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "is_locked", False) and not is_exiting():
            with contextlib.suppress(RuntimeError):  # the device has failed
                self._unlock()


_known: WeakValueDictionary[tuple[int, int], LockedMemory] = WeakValueDictionary()
_making = threading.Lock()


def locked_memory(tensor: torch.Tensor, device: torch.device) -> LockedMemory:
    """Return the memory behind a tensor, the same object for all who ask while it is used.

    Args:
        tensor: On the CPU.
        device: A CUDA device, with its index.
    """
    storage = tensor.untyped_storage()
    with _making:
        _watch_forks()
        key = storage.data_ptr(), storage.nbytes()
        memory = _known.get(key)
        if memory is None:
            memory = _known[key] = LockedMemory(tensor, device)
        return memory


def unlock_memory(start: int, size_bytes: int) -> None:
    """Unlock what lies in a range of addresses, whose pages are about to be replaced."""
    for memory in tuple(_known.values()):
        if memory.start < start + size_bytes and start < memory.stop:
            memory.unlock()


class _Paused(threading.local):
    memories: tuple[LockedMemory, ...] = ()


_paused = _Paused()
"""By a fork of this thread."""
_is_watching = False


def _watch_forks() -> None:
    global _is_watching  # noqa: PLW0603 - handlers cannot be taken back, so there is one set
    if not _is_watching and hasattr(os, "register_at_fork"):
        _is_watching = True
        os.register_at_fork(before=_pause_all, after_in_parent=_go_on, after_in_child=_go_on)


def _pause_all() -> None:
    # In one order, as another thread may fork as well.
    _paused.memories = tuple(sorted(_known.values(), key=id))
    for memory in _paused.memories:
        memory.pause()


def _go_on() -> None:
    for memory in _paused.memories:
        memory.go_on()
    _paused.memories = ()
