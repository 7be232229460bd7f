"""A file of decoded pixels in a cache folder: found again, or made anew."""

import ctypes
import errno
import glob
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastloader._secrets import hide_secrets
from fastloader.cache._meeting import locked_folder
from fastloader.errors import SharedMemoryError
from fastloader.shm import MemoryFile, ProcessLock

if sys.platform != "win32":
    import fcntl

__all__ = [
    "DISK_HEADER_BYTES",
    "MAGIC",
    "default_cache_folder",
    "disk_cache_path",
    "is_in_use",
    "open_disk_file",
    "remove_unused",
]

DISK_HEADER_BYTES = 4096
"""At the start of a file: what it holds. Checksums and pixels come behind it."""

MAGIC = b"fastloader pixels 1\n"
"""What each file begins with."""
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What file systems of networks say that know no locks, or whose server of locks is not there."""
_lock = ProcessLock()


def default_cache_folder() -> Path:
    """Return where caches on disk go: ``FASTLOADER_CACHE_DIR``, or the user's cache folder."""
    chosen = os.environ.get("FASTLOADER_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fastloader"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "fastloader"
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "fastloader"


def disk_cache_path(folder: Path, where: str, choice: str) -> Path:
    """Return the file for some images of a source: one name, whatever the source holds by now.

    All names of a source that are links to it give one file.

    Args:
        folder: The cache folder.
        where: The source, as its error messages name it.
        choice: Which of its images.
    """
    place = where if "://" in where else _real_place(where)
    digest = hashlib.blake2b(
        f"{place}\n{choice}".encode(errors="surrogateescape"), digest_size=12
    ).hexdigest()
    last = Path(hide_secrets(place).partition(", column ")[0].partition("?")[0]).name
    name = last.partition(".")[0] or "images"
    return folder / f"{name[:40]}-{digest}.pixels"


def open_disk_file(
    path: Path, content: str, num_bytes: int, check_room: Callable[[], None]
) -> MemoryFile:
    """Return the file of some content, a new one of zeros if there is none or another one.

    One process at a time looks and makes; the system ends its turn if it dies. On a file system
    without locks only those of this machine wait for each other: two machines may make a file at
    once, of which one is found later. A new file takes the place of another in one step: whoever
    has the old one mapped keeps it. A file that is there but cannot be written to, or its folder
    cannot, is given to be read only. Who may read a new file is as the user has it for all files
    (umask); a folder that is made for it is the user's alone.

    Args:
        path: The file.
        content: What it is to hold; a file of other content is replaced.
        num_bytes: Its whole length.
        check_room: Called before a new file is made; raises if there is no room for it.

    Raises:
        SharedMemoryError: If the folder cannot be written to, and the file is not there or of
            other content.
    """
    header = _header(content, num_bytes)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock, _turn(path) as is_only_one:
            file = _open_existing(path, header, num_bytes)
            if file is None:
                check_room()
                if is_only_one:
                    _remove_leftovers(path)
                file = _create(path, header, num_bytes)
            _note_use(file)
            return file
    except OSError as error:
        if error.errno in _FORBIDDEN and (found := _find_to_read(path, header, num_bytes)):
            _note_use(found)
            return found
        raise SharedMemoryError(
            f"The cache file {path} cannot be made ({error}): choose a folder that can be "
            f"written to and has room with cache_dir=, or the environment variable FASTLOADER_CACHE_DIR, "
            f"or remove what is not needed any more (fastloader cache --clear)."
        ) from error


def is_in_use(descriptor: int) -> bool:
    """Return whether a process has a cache file, which is not to be removed then.

    Args:
        descriptor: Of the file, opened for this alone.

    Returns:
        True also where the file system has no locks, and nobody can know.
    """
    if sys.platform == "win32":
        return False  # the system itself refuses to remove it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def remove_unused(path: Path) -> bool:
    """Remove a cache file, and what belongs to it, unless a process has it.

    Nobody finds it while it is looked at: who would, waits for the turn.

    Returns:
        Whether it is gone.

    Raises:
        OSError: If it cannot be removed.
    """
    with _lock, _turn(path) as is_only_one:
        try:
            with path.open("rb") as file:
                if is_in_use(file.fileno()):
                    return False
        except FileNotFoundError:
            pass
        path.unlink(missing_ok=True)
        if is_only_one:
            _remove_leftovers(path)
            if sys.platform != "win32":  # which removes no open file
                path.with_suffix(".lock").unlink(missing_ok=True)
    return True


def _note_use(file: MemoryFile) -> None:
    """Let others know that a process has a file, for as long as one has, and since when.

    All copies of the descriptor, also those of children, are the same lock.
    """
    if sys.platform == "win32":
        return
    with suppress(OSError):  # of a file system without locks
        # It does not wait for long: nobody keeps the file for himself, see `is_in_use`.
        fcntl.flock(file.fileno(), fcntl.LOCK_SH)
    with suppress(OSError):  # of somebody else's file
        os.utime(file.fileno())


def _remove_leftovers(path: Path) -> None:
    """Remove what a process that died here left of the file."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.part"):
        leftover.unlink(missing_ok=True)


def _real_place(where: str) -> str:
    """Return the name of a source here, of which the path is the real one.

    Args:
        where: A path, and behind commas what is meant of it.
    """
    path, rest = where, ""
    while path and not os.path.lexists(path):
        path, comma, last = path.rpartition(", ")
        rest = comma + last + rest
    return os.path.realpath(path) + rest if path else str(Path.cwd() / where)


@contextmanager
def _turn(path: Path) -> Iterator[bool]:
    """Wait until no other process is in the block.

    Yields:
        Whether processes of all machines wait, not of this one alone.
    """
    lock = path.with_suffix(".lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _lock_file(descriptor):
            with locked_folder():
                yield False
            return
        # Who removes a cache removes the file of locks with it.
        while not _is_at(lock, descriptor):
            os.close(descriptor)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            _lock_file(descriptor)
        yield True
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return sys.platform == "win32" or os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock_file(descriptor: int) -> bool:
    """Lock a file as soon as no other process has it; False if its file system has no locks.

    Raises:
        OSError: If it cannot be locked for another reason.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _open_existing(path: Path, header: bytes, num_bytes: int) -> MemoryFile | None:
    try:
        return _open_same(path, header, num_bytes, os.O_RDWR)
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        return _open_same(path, header, num_bytes, os.O_RDONLY)


def _find_to_read(path: Path, header: bytes, num_bytes: int) -> MemoryFile | None:
    try:
        return _open_same(path, header, num_bytes, os.O_RDONLY)
    except OSError:
        return None


def _open_same(path: Path, header: bytes, num_bytes: int, flags: int) -> MemoryFile | None:
    """Return a file if it is there and of this header and length."""
    try:
        file = MemoryFile(os.open(path, flags | getattr(os, "O_CLOEXEC", 0)))
    except FileNotFoundError:
        return None
    with Path(path).open("rb") as reader:
        is_same = reader.read(DISK_HEADER_BYTES) == header
    if is_same and file.size_bytes == num_bytes:
        return file
    file.close()
    return None


def _create(path: Path, header: bytes, num_bytes: int) -> MemoryFile:
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    file = MemoryFile(os.open(temporary, flags, 0o666))
    try:
        file.write(0, memoryview(header))
        os.truncate(file.fileno(), num_bytes)
        _reserve(file.fileno(), num_bytes)
        os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        file.close()
        raise
    return file


def _reserve(descriptor: int, num_bytes: int) -> None:
    """Take room on the disk now: pixels are mapped, and running out of it then ends the process.

    Where a file system cannot (some of networks), the room is taken as pixels are written.
    `os.posix_fallocate` would write to each of its blocks instead, however many there are.

    Raises:
        OSError: If there is not enough.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    while libc.fallocate64(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(num_bytes)):
        number = ctypes.get_errno()
        if number == errno.EINTR:
            continue
        if number in {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}:
            return
        raise OSError(number, os.strerror(number))


def _header(content: str, num_bytes: int) -> bytes:
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    text = json.dumps({"content": digest, "bytes": num_bytes, "byteorder": sys.byteorder})
    return (MAGIC + text.encode()).ljust(DISK_HEADER_BYTES, b"\0")
