"""A file or folder that appears whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastloader.errors import DestinationError

__all__ = ["replacing"]


@contextmanager
def replacing(destination: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a path to write to, and put it in the place of `destination` when the block is done.

    The path lies in a new folder beside the destination, so that the last step is a rename.
    When the block fails nothing of it stays, and what was at the destination before is as it
    was.

    Args:
        destination: File or folder to make.
        overwrite: Whether it may replace another.

    Yields:
        A path of the same name that does not exist yet.

    Raises:
        DestinationError: If something is there and must not be replaced, or the folder cannot
            be written to.
    """
    target = Path(destination)
    _check_free(target, overwrite=overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(".part", f".{target.name}.", target.parent))
    except OSError as error:
        raise DestinationError(f"{target} cannot be written ({error}).") from error
    try:
        yield folder / target.name
        _check_free(target, overwrite=overwrite)  # it may have taken hours
        _put(folder / target.name, target, folder)
    finally:
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
        target.rename(folder / "replaced")  # a rename cannot replace a folder that is not empty
    source.replace(target)


def _flush(path: Path) -> None:
    """Bring files to the disk before their name is: else a crash could leave the name alone."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
