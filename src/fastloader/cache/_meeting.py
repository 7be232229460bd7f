"""Processes that did not inherit memory from each other find it by a name."""

import hashlib
import json
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fastloader.shm import MemoryFile, ProcessLock

if sys.platform != "win32":
    import fcntl

__all__ = ["HEADER_BYTES", "meet"]

HEADER_BYTES = 4096
"""At the start of a memory file, kept for the name."""

_lock = ProcessLock()


def meet(name: str, create: Callable[[], MemoryFile]) -> MemoryFile:
    """Return the memory file of a name: of another process if one has it, else a new one.

    Ranks that a launcher started each build their own dataset; this way they hold one copy of
    its pixels. Memory files have no name in any file system, so whoever makes one leaves a
    note (process and descriptor) in a folder that only this user can enter. The file is opened
    through ``/proc``, and it is checked that it is the right one. Notes of processes that are
    gone are swept away.

    **Processes:** of one user, within one control group and one container. Where there is no
    ``/proc``, each process has its own.

    Args:
        name: What the file holds.
        create: Makes the file, whose first `HEADER_BYTES` are zeros.
    """
    if not Path("/proc/self/fd").exists() or not hasattr(os, "memfd_create"):
        return create()
    key = hashlib.blake2b(f"{name}\n{_scope()}".encode(), digest_size=16).hexdigest()
    with _lock, _locked_folder() as folder:
        if folder is None:
            return create()
        note = folder / f"{key}.json"
        found = _open_noted(note, key)
        if found is not None:
            return found
        _sweep(folder)
        file = create()
        file.write(0, memoryview(key.encode()))
        note.write_text(json.dumps([os.getpid(), file.fileno()]), encoding="utf-8")
        weakref.finalize(file, _remove_note, note, os.getpid(), file.fileno())
        return file


@contextmanager
def _locked_folder() -> Iterator[Path | None]:
    """Yield the folder of notes while no other process is in it; None if there cannot be one."""
    folder = Path(tempfile.gettempdir()) / f"fastloader-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        # In a folder for all users, somebody else may have taken the name.
        is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o077
        if not is_ours or folder.is_symlink():
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
    groups = Path("/proc/self/cgroup")
    text = groups.read_text(encoding="utf-8") if groups.exists() else ""
    return text + str(Path("/proc/self/ns/pid").readlink())


def _open_noted(note: Path, key: str) -> MemoryFile | None:
    """Return the file that a note leads to, or None if it is not there any more."""
    try:
        process, descriptor = json.loads(note.read_text(encoding="utf-8"))
        path = Path(f"/proc/{int(process)}/fd/{int(descriptor)}")
        # Looked at before it is opened: the number may belong to a pipe or device by now.
        if not str(path.readlink()).startswith("/memfd:fastloader"):
            return None
        file = MemoryFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except (OSError, ValueError, TypeError):
        return None
    if os.pread(file.fileno(), len(key), 0) != key.encode():
        file.close()
        return None
    return file


def _sweep(folder: Path) -> None:
    """Remove the notes of processes that are gone."""
    for note in folder.glob("*.json"):
        try:
            process, _ = json.loads(note.read_text(encoding="utf-8"))
            is_alive = Path(f"/proc/{int(process)}").exists()
        except (OSError, ValueError, TypeError):
            is_alive = False
        if not is_alive:
            note.unlink(missing_ok=True)


def _remove_note(note: Path, process: int, descriptor: int) -> None:
    """Take our own note away; a forked child, or one who came later, leaves others' alone."""
    if os.getpid() != process:
        return
    try:
        if json.loads(note.read_text(encoding="utf-8")) == [process, descriptor]:
            note.unlink()
    except (OSError, ValueError):
        pass
