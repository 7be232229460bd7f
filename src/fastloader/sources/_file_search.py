"""Finds the image files of a folder, in the order in which people count."""

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence

from fastloader.sources._file_tree import FileTree

__all__ = [
    "TIFF_SUFFIXES",
    "ZARR_METADATA",
    "file_columns",
    "find_files",
    "holds_file",
    "is_zarr_node",
    "natural_order",
    "walk_folders",
]

TIFF_SUFFIXES = (".tif", ".tiff", ".btf", ".tf8", ".tf2", ".lsm", ".stk")
ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray")
"""One of these is in each folder that is a Zarr group or array."""


def find_files(tree: FileTree, suffixes: Sequence[str], pattern: str | None) -> list[str]:
    """Return the paths of files inside a tree, in natural order.

    Args:
        tree: Searched with all its subfolders, unless it is a file, whose path is ``""``.
        suffixes: Of the files, lower case; any case matches.
        pattern: Which files instead, see `TiffFolder`.

    Raises:
        SourceError: If there is no such folder.
    """
    is_named_so = tree.names("")[-1].lower().endswith(tuple(suffixes))
    # A URL that does not look like a file is not asked for: that takes time, and may be denied.
    if (tree.is_local or is_named_so) and tree.is_file(""):
        return [""]
    found = {}
    for folder, _, names in walk_folders(tree):
        for name in names:
            plain = tree.plain(f"{folder}{name}")
            if pattern is None:
                is_wanted = plain.lower().endswith(tuple(suffixes))
            else:
                compared = plain if "/" in pattern else plain.rpartition("/")[2]
                is_wanted = fnmatch.fnmatchcase(compared, pattern)
            if is_wanted:
                found[f"{folder}{name}"] = plain
    return sorted(found, key=lambda path: natural_order(found[path]))


def holds_file(tree: FileTree, suffixes: Sequence[str]) -> bool:
    """Tell whether a folder has such a file somewhere; stops at the first.

    Zarr stores are not looked into: they may have more folders than all else.

    Args:
        tree: A folder.
        suffixes: Of the file, lower case.
    """
    return any(
        name.lower().endswith(tuple(suffixes))
        for _, _, names in walk_folders(tree, lambda _, files: not is_zarr_node(files))
        for name in names
    )


def is_zarr_node(files: Sequence[str]) -> bool:
    """Tell by the names of its files whether a folder is a Zarr group or array."""
    return any(name in files for name in ZARR_METADATA)


def walk_folders(
    tree: FileTree, descends: Callable[[str, Sequence[str]], bool] = lambda *_: True
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder's relative path, ``""`` or ending in ``/``, its folders and its files.

    Hidden ones are left out: among them are the ``._`` files that macOS leaves beside images.
    Links are followed, each folder is seen once.

    Args:
        tree: Where to start.
        descends: Is asked with a folder's relative path, and the names of all its files, whether
            to yield it and look further inside.

    Raises:
        SourceError: If there is no such folder.
    """
    seen = set()
    level = [""]
    while level:
        next_level: list[str] = []
        for inside, (folders, files) in zip(
            level, tree.each(tree.list_folder, level), strict=True
        ):
            identity = tree.identity(inside)
            if identity in seen or not descends(inside, files):
                continue
            seen.add(identity)
            visible = [name for name in folders if not name.startswith(".")]
            yield inside, visible, [name for name in files if not name.startswith(".")]
            next_level += [f"{inside}{name}/" for name in visible]
        level = next_level


def natural_order(path: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts ``plate2`` before ``plate10``."""
    parts = re.split(r"(\d+)", path)
    return [
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part
    ]


def file_columns(tree: FileTree, inside: str) -> dict[str, str | int | None]:
    """Return what the place of a file says: ``path``, ``file_name``, ``folder``.

    Args:
        tree: What was searched, or the file itself.
        inside: Its path there.
    """
    folder, name = tree.names(inside)[-2:]
    return {"path": tree.plain(inside) or name, "file_name": name, "folder": folder}
