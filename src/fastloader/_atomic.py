"""A file or folder that appears whole or not at all."""

import glob
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastloader.errors import DestinationError

if sys.platform != "win32":
    import fcntl

__all__ = ["replacing"]

_ENDING = ".part"
_REPLACED = "replaced"
_SOON_SECONDS = 60


@contextmanager
def replacing(destination: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a path to write to, and put it in the place of `destination` when the block is done.

    The path lies in a new folder beside the destination, so that the last step is a rename.
    When the block fails nothing of it stays, and what was at the destination before is as it
    was. What is left of a process that was killed in its block is removed by the next one that
    writes to the same destination; one that is still at work is left alone.

    Args:
        destination: File or folder to make; behind a link, what the link leads to.
        overwrite: Whether it may replace another.

    Yields:
        A path of the same name that does not exist yet.

    Raises:
        DestinationError: If something is there and must not be replaced, or the folder cannot
            be written to.
    """
    target = Path(destination)
    try:
        if target.is_symlink():
            target = target.resolve()
        _remove_leftovers(target)
        _check_free(target, overwrite=overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(_ENDING, f".{target.name}.", target.parent))
        # Another process may look just now whether this is a leftover, which takes it no time.
        lock = _lock(folder, waits=True)
    except DestinationError:
        raise
    except OSError as error:
        raise DestinationError(f"{target} cannot be written ({error}).") from error
    try:
        yield folder / target.name
        _check_free(target, overwrite=overwrite)  # it may have taken hours
        _put(folder / target.name, target, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, *, waits: bool) -> int | None:
    """Lock a folder for as long as this process lives; None if another has done so.

    Where there are no such locks nobody gets one, and leftovers stay.

    Args:
        folder: To lock.
        waits: Whether to wait until the other one is done.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_leftovers(target: Path) -> None:
    """Remove the folders of processes that were killed, which hold no lock any more."""
    for folder in target.parent.glob(f".{glob.escape(target.name)}.*{_ENDING}"):
        with suppress(FileNotFoundError):  # its owner has finished meanwhile
            lock = _lock(folder, waits=False)
            if lock is None:
                continue
            try:
                _remove_leftover(folder, target)
            finally:
                os.close(lock)


def _remove_leftover(folder: Path, target: Path) -> None:
    # One that was made this moment may not be locked yet.
    if time.time() - folder.stat().st_mtime > _SOON_SECONDS or any(folder.iterdir()):
        if (folder / _REPLACED).exists() and not target.exists():
            (folder / _REPLACED).rename(target)  # it was killed between the two renames
        shutil.rmtree(folder, ignore_errors=True)


def _check_free(target: Path, *, overwrite: bool) -> None:
    if target.exists() and not overwrite:
        raise DestinationError(
            f"{target} exists already: choose another name, or let it be replaced with "
            f"overwrite=True (--overwrite)."
        )


def _put(source: Path, target: Path, folder: Path) -> None:
    _flush(source)
    if target.is_dir() or (source.is_dir() and target.exists()):
        target.rename(folder / _REPLACED)  # a rename cannot replace a folder that is not empty
    source.replace(target)


def _flush(path: Path) -> None:
    """Bring files to the disk before their name is: else a crash could leave the name alone."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
