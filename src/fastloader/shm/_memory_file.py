"""Anonymous memory files: bytes that processes map together, without a name to clean up."""

import errno
import mmap
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from fastloader.errors import SharedMemoryError, UnpicklableError

if sys.platform != "win32":
    import fcntl

__all__ = [
    "MemoryFile",
    "can_send_memory_files",
    "collecting_memory_files",
    "providing_memory_files",
]

_RAISE_LIMIT = "raise the limit of the size of files (ulimit -f)"


class MemoryFile:
    """A file of bytes in memory that this process and its children map together.

    Where the system has it this is ``memfd_create``: no name, nothing to unlink, no limit by
    the size of ``/dev/shm``, and gone with its last descriptor and mapping however a process
    ends. Elsewhere it is a temporary file that nobody else can open by name.

    **Processes:** whoever creates or unpickles one closes it; the bytes live until the last
    process has closed and unmapped them. Forked children inherit it. It can be pickled only
    while a child process is being started, or inside `collecting_memory_files`.
    """

    def __init__(self, descriptor: int) -> None:
        """Take over an open descriptor.

        Args:
            descriptor: Of a file that can be mapped, in memory or on disk; closed by this
                object.
        """
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, size_bytes: int) -> Self:
        """Make a new file of zeros; pages take memory when they are first written.

        Args:
            size_bytes: Length, 1 or more.

        Raises:
            SharedMemoryError: If the system gives no descriptor or no such length.
        """
        try:
            file = cls(_open_anonymous())
        except OSError as error:
            raise SharedMemoryError(
                f"A memory file of {size_bytes} bytes was asked for, but the system gave no "
                f"descriptor ({error}): raise the limit of open files (ulimit -n)."
            ) from error
        file.resize(size_bytes)
        return file

    @property
    def size_bytes(self) -> int:
        """Length now, also if another process changed it."""
        return os.fstat(self.fileno()).st_size

    @property
    def is_read_only(self) -> bool:
        """True for a file that was opened to be read only."""
        if sys.platform == "win32":
            return False
        return fcntl.fcntl(self.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY

    @property
    def is_closed(self) -> bool:
        """True after `close`; mappings stay usable."""
        return not self._close.alive

    def fileno(self) -> int:
        """Return the descriptor, which stays owned by this object.

        Raises:
            SharedMemoryError: If the file was closed.
        """
        if self.is_closed:
            raise SharedMemoryError("The memory file was closed: map it before `close`.")
        return self._descriptor

    def resize(self, size_bytes: int) -> None:
        """Change the length, for all processes; existing mappings keep theirs.

        Never cut off what somebody has mapped: touching it would kill that process.

        Args:
            size_bytes: New length, 1 or more.

        Raises:
            SharedMemoryError: If the length is not positive or more than the system allows.
        """
        if size_bytes < 1:
            raise SharedMemoryError(f"A memory file has 1 byte or more, but got {size_bytes}.")
        try:
            os.truncate(self.fileno(), size_bytes)
        except (OSError, OverflowError) as error:
            remedy = f": {_RAISE_LIMIT}" if getattr(error, "errno", 0) == errno.EFBIG else ""
            raise SharedMemoryError(
                f"A memory file cannot have {size_bytes} bytes ({error}){remedy}."
            ) from error

    def map(self, *, private: bool = False) -> mmap.mmap:
        """Map the whole file into this process, to read and write.

        The mapping keeps the bytes alive by itself, also after `close`.

        Args:
            private: Writes stay in this process, copying each page at its first write
                (copy on write), instead of reaching all processes. It is always so for a file
                that is only to be read.

        Raises:
            SharedMemoryError: If the address space or the number of mappings is exhausted.
        """
        is_private = private or self.is_read_only
        access = mmap.ACCESS_COPY if is_private else mmap.ACCESS_WRITE
        try:
            return mmap.mmap(self.fileno(), 0, access=access)
        except (OSError, ValueError) as error:
            raise SharedMemoryError(
                f"A memory file of {self.size_bytes} bytes cannot be mapped ({error})."
            ) from error

    def write(self, offset_bytes: int, content: memoryview) -> None:
        """Write bytes, for all processes.

        Filling a new file this way takes about 0.6 of the time that it takes through a
        mapping: pages that are written whole need neither a fault nor zeroing first.

        Args:
            offset_bytes: Where the first byte goes; all must lie inside the file.
            content: Contiguous bytes.

        Raises:
            SharedMemoryError: If the system has no room for them.
        """
        if not hasattr(os, "pwrite"):
            with self.map() as mapping:
                mapping[offset_bytes : offset_bytes + len(content)] = content
            return
        try:
            while len(content):  # one call writes 2 GiB at most
                written = os.pwrite(self.fileno(), content, offset_bytes)
                content, offset_bytes = content[written:], offset_bytes + written
        except OSError as error:
            remedy = _RAISE_LIMIT if error.errno == errno.EFBIG else "make room"
            raise SharedMemoryError(
                f"{len(content)} bytes cannot be written at byte {offset_bytes} of a file of "
                f"{self.size_bytes}{self._place()} ({error}): {remedy}."
            ) from error

    def _place(self) -> str:
        """Return where the file is on disk, as far as the system says so."""
        try:
            path = str(Path(f"/proc/self/fd/{self.fileno()}").readlink())
        except OSError:
            return ""
        return "" if path.startswith("/memfd:") else f", {path},"

    def close(self) -> None:
        """Give the descriptor back; harmless when repeated."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., "MemoryFile"], tuple[Any, ...]]:
        if _passing.collected is not None:
            return _take_provided, (_position_in(_passing.collected, self),)
        if get_spawning_popen() is None:
            raise UnpicklableError(
                "A memory file can be pickled only while a process is being started: give it "
                "to `Process(args=...)`, or pickle inside `collecting_memory_files`."
            )
        return _receive, (_duplicate_for_child(self.fileno()),)


class _Handle(Protocol):
    def detach(self) -> int: ...


class _Passing(threading.local):
    collected: list[MemoryFile] | None = None
    provided: Sequence[MemoryFile] = ()


_passing = _Passing()


def can_send_memory_files() -> bool:
    """Return True if a `MemoryFile` that is pickled now, in this thread, would arrive."""
    return _passing.collected is not None or get_spawning_popen() is not None


@contextmanager
def collecting_memory_files() -> Iterator[list[MemoryFile]]:
    """Pickle memory files as positions in a list while the block runs, in this thread.

    The pickle can then be made once and sent to many processes any way; the files themselves
    go to each process as an argument of its start. There, `providing_memory_files` puts them
    back.

    Yields:
        The list, which fills while pickling.
    """
    previous = _passing.collected
    collected: list[MemoryFile] = []
    _passing.collected = collected
    try:
        yield collected
    finally:
        _passing.collected = previous


@contextmanager
def providing_memory_files(files: Sequence[MemoryFile]) -> Iterator[None]:
    """Let pickles made inside `collecting_memory_files` find their files in this thread.

    Args:
        files: What `collecting_memory_files` gave, in the same order.
    """
    previous = _passing.provided
    _passing.provided = files
    try:
        yield
    finally:
        _passing.provided = previous


def _position_in(files: list[MemoryFile], wanted: MemoryFile) -> int:
    for position, file in enumerate(files):
        if file is wanted:
            return position
    files.append(wanted)
    return len(files) - 1


def _take_provided(position: int) -> MemoryFile:
    try:
        return _passing.provided[position]
    except IndexError:
        raise UnpicklableError(
            f"A pickle refers to memory file {position}, but {len(_passing.provided)} were "
            "provided: unpickle it inside `providing_memory_files`."
        ) from None


def _receive(handle: _Handle) -> MemoryFile:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - exists only there

        return MemoryFile(msvcrt.open_osfhandle(handle.detach(), os.O_RDWR))
    return MemoryFile(handle.detach())


def _open_anonymous() -> int:
    memfd_create = getattr(os, "memfd_create", None)
    if memfd_create is not None:
        try:
            return int(memfd_create("fastloader"))
        except OSError as error:
            if error.errno not in {errno.ENOSYS, errno.EPERM}:  # of sandboxes that lack it
                raise
    with tempfile.TemporaryFile(prefix="fastloader-") as file:
        return os.dup(file.fileno())


if sys.platform == "win32":

    def _duplicate_for_child(descriptor: int) -> _Handle:
        import _winapi  # noqa: PLC0415 - exists only there
        import msvcrt  # noqa: PLC0415

        access = _winapi.DUPLICATE_SAME_ACCESS
        return reduction.DupHandle(msvcrt.get_osfhandle(descriptor), access)

else:

    def _duplicate_for_child(descriptor: int) -> _Handle:
        return reduction.DupFd(descriptor)
