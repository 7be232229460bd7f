"""Processes that did not inherit memory from each other find it by a name."""

import hashlib
import json
import os
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastloader.machine._system_files import read_text
from fastloader.shm import MemoryFile, ProcessLock

if sys.platform != "win32":
    import fcntl

__all__ = ["HEADER_BYTES", "Hold", "hold", "locked_folder", "meet"]

HEADER_BYTES = 4096
"""At the start of a memory file, kept for the name."""

_NO_FILE = -1
"""In place of a descriptor, in the notes of who has memory of its own."""
_DESCRIPTORS = Path("/proc/self/fd")
_GROUPS, _NAMESPACE = "/proc/self/cgroup", "/proc/self/ns/pid"
_lock = ProcessLock()


def meet(name: str, create: Callable[[], MemoryFile]) -> MemoryFile:
    """Return the memory file of a name: of another process if one has it, else a new one.

    Ranks that a launcher started each build their own dataset; this way they hold one copy of
    its pixels. Memory files have no name in any file system, so whoever makes one leaves a
    note (process and descriptor) in a folder that only this user can enter. The file is opened
    through ``/proc``, and it is checked that it is the right one. Notes of processes that are
    gone are swept away.

    **Processes:** of one user, within one control group and one container. Where there is no
    ``/proc``, or no room for a note, each process has its own.

    Args:
        name: What the file holds.
        create: Makes the file, whose first `HEADER_BYTES` are zeros.
    """
    if not _can_meet():
        return create()
    key = _key(name)
    with _lock, locked_folder() as folder:
        if folder is None:
            return create()
        note = folder / f"{key}.json"
        found = _open_noted(note, key)
        if found is not None:
            return found
        _sweep(folder)
        file = create()
        file.write(0, memoryview(key.encode()))
        _leave_note(note, file.fileno(), file)
        return file


class Hold:
    """What a process left word of: that it has the content of a name in memory of its own."""

    __slots__ = ("_key", "_note")

    def __init__(self, note: Path, key: str) -> None:
        self._note = note
        self._key = key

    def is_wanted(self) -> bool:
        """Return whether another process made a memory file of this name since."""
        found = _open_noted(self._note, self._key)
        if found is None:
            return False
        found.close()
        return True


def hold(name: str, owner: object) -> Hold | None:
    """Leave word that this process has the content of a name in memory of its own.

    Whoever comes next makes a memory file, by which all who want one meet.

    Args:
        name: As for `meet`.
        owner: The word is taken back when this object is gone.

    Returns:
        None if another process has the memory file, or left such word, or nobody could be told.
    """
    if not _can_meet():
        return None
    key = _key(name)
    with _lock, locked_folder() as folder:
        if folder is None:
            return None
        note = folder / f"{key}.json"
        if _is_of_others(note, key):
            return None
        return Hold(note, key) if _leave_note(note, _NO_FILE, owner) else None


def _leave_note(note: Path, descriptor: int, owner: object) -> bool:
    """Write a note, which is taken back when its owner is gone; False if there is no room for it."""
    try:
        note.write_text(json.dumps([os.getpid(), descriptor]), encoding="utf-8")
    except OSError:  # each process then has its own
        note.unlink(missing_ok=True)
        return False
    weakref.finalize(owner, _remove_note, note, os.getpid(), descriptor)
    return True


def _is_of_others(note: Path, key: str) -> bool:
    """Return whether a note leads to a memory file, or is of another process that lives."""
    noted = _read_note(note)
    if noted is None:
        return False
    found = _open_file(noted, key)
    if found is not None:
        found.close()
        return True
    return noted[0] != os.getpid() and _is_alive(noted[0])


def _can_meet() -> bool:
    return _DESCRIPTORS.exists() and hasattr(os, "memfd_create")


def _key(name: str) -> str:
    return hashlib.blake2b(
        f"{name}\n{_scope()}".encode(errors="surrogateescape"), digest_size=16
    ).hexdigest()


@contextmanager
def locked_folder() -> Iterator[Path | None]:
    """Yield the folder of notes while no other process is in it; None if there cannot be one."""
    try:
        folder = Path(tempfile.gettempdir()) / f"fastloader-{os.getuid()}"  # or there is none
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        # In a folder for all users, somebody else may have taken the name, or made a link of it.
        is_closed = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        if not is_closed or status.st_uid != os.getuid():
            yield None
            return
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield None
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)  # given back by the system if we die
        yield folder
    finally:
        os.close(descriptor)


def _scope() -> str:
    """Describe who may share memory: its use is charged to a control group."""
    return read_text(_GROUPS) + os.readlink(_NAMESPACE)  # noqa: PTH115 - a third of the time


def _read_note(note: Path) -> tuple[int, int] | None:
    """Return the process and the descriptor of a note; None if it is not there, or damaged."""
    try:
        process, descriptor = json.loads(read_text(str(note)))
        return int(process), int(descriptor)
    except (ValueError, TypeError):
        return None


def _open_noted(note: Path, key: str) -> MemoryFile | None:
    """Return the file that a note leads to, or None if it is not there any more."""
    noted = _read_note(note)
    return None if noted is None else _open_file(noted, key)


def _open_file(noted: tuple[int, int], key: str) -> MemoryFile | None:
    """Return the file of a process and a descriptor, or None if it is another one by now."""
    path = Path("/proc/{}/fd/{}".format(*noted))
    try:
        # Looked at before it is opened: the number may belong to a pipe or device by now.
        if not str(path.readlink()).startswith("/memfd:fastloader"):
            return None
        file = MemoryFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except (OSError, ValueError):
        return None
    if os.pread(file.fileno(), len(key), 0) != key.encode():
        file.close()
        return None
    return file


def _sweep(folder: Path) -> None:
    """Remove the notes of processes that are gone."""
    for note in folder.glob("*.json"):
        noted = _read_note(note)
        if noted is None or not _is_alive(noted[0]):
            note.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def _remove_note(note: Path, process: int, descriptor: int) -> None:
    """Take our own note away; a forked child, or one who came later, leaves others' alone."""
    if os.getpid() != process:
        return
    if _read_note(note) == (process, descriptor):
        with suppress(OSError):
            note.unlink()
