"""Finds the image files of a folder, in the order in which people count."""

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from fastloader.errors import SourceError

__all__ = [
    "TIFF_SUFFIXES",
    "file_columns",
    "find_files",
    "holds_file",
    "natural_order",
    "walk_folders",
]

TIFF_SUFFIXES = (".tif", ".tiff", ".btf", ".tf8", ".tf2", ".lsm", ".stk")


def find_files(root: str, suffixes: Sequence[str], pattern: str | None) -> list[str]:
    """Return the paths of files, relative to `root`, in natural order.

    Args:
        root: A folder, searched with all its subfolders; or a file, whose path is ``""``.
        suffixes: Of the files, lower case; any case matches.
        pattern: Which files instead, see `TiffFolder`.

    Raises:
        SourceError: If there is no such folder.
    """
    if Path(root).is_file():
        return [""]
    found = []
    for folder, _, names in walk_folders(root):
        for name in names:
            path = f"{folder}{name}"
            if pattern is None:
                is_wanted = name.lower().endswith(tuple(suffixes))
            else:
                is_wanted = fnmatch.fnmatchcase(path if "/" in pattern else name, pattern)
            if is_wanted:
                found.append(path)
    return sorted(found, key=natural_order)


def holds_file(root: str, suffixes: Sequence[str]) -> bool:
    """Tell whether a folder has such a file somewhere; stops at the first.

    Args:
        root: A folder.
        suffixes: Of the file, lower case.
    """
    return any(
        name.lower().endswith(tuple(suffixes))
        for _, _, names in walk_folders(root)
        for name in names
    )


def walk_folders(
    root: str, descends: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder's relative path, ``""`` or ending in ``/``, its folders and its files.

    Hidden ones are left out: among them are the ``._`` files that macOS leaves beside images.
    Links are followed, each folder is seen once.

    Args:
        root: Where to start.
        descends: Is asked with a folder's path whether to look inside.

    Raises:
        SourceError: If there is no such folder.
    """
    if not Path(root).is_dir():
        raise SourceError(f"{root} is not there: expected a folder of images, or one image.")
    seen = set()
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        folder = Path(root, inside)
        state = folder.stat()
        if (state.st_dev, state.st_ino) in seen:
            continue
        seen.add((state.st_dev, state.st_ino))
        if not descends(str(folder)):
            continue
        folders: list[str] = []
        files: list[str] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    (folders if entry.is_dir() else files).append(entry.name)
        yield inside, folders, files
        waiting += [f"{inside}{name}/" for name in folders]


def natural_order(path: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts ``plate2`` before ``plate10``.

    Args:
        path: Any text.
    """
    parts = re.split(r"(\d+)", path)
    return [
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part
    ]


def file_columns(root: str, path: str) -> dict[str, str | int | None]:
    """Return what the place of a file says: ``path``, ``file_name``, ``folder``.

    Args:
        root: The folder that was searched, or the file itself.
        path: Relative to it.
    """
    whole = PurePosixPath(Path(root).resolve().as_posix(), path) if path else None
    named = PurePosixPath(Path(root).resolve().as_posix()) if whole is None else whole
    return {"path": path or named.name, "file_name": named.name, "folder": named.parent.name}
