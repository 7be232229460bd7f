"""What a folder of images is given as: a path, a URL, or a list of either."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from fastloader.errors import SettingsError, SourceError
from fastloader.sources._file_tree import FileTree, LocalTree
from fastloader.sources._paths import PathLike, StorageOptions, is_url, path_text

__all__ = ["ImagePaths", "open_tree"]

ImagePaths: TypeAlias = PathLike | Sequence[PathLike]


def open_tree(
    path: ImagePaths, storage_options: StorageOptions = None
) -> tuple[FileTree, list[str]]:
    """Return where images are, and which of the files or folders there are meant.

    Args:
        path: A folder or file; or several, which need a folder or server in common.
        storage_options: Arguments of fsspec's file system, for URLs.

    Returns:
        The tree, and the paths in it of what was listed: none for a single path, which is the
        root of the tree.

    Raises:
        SourceError: If the list is empty.
        SettingsError: If what is listed has no root in common.
    """
    if isinstance(path, str | os.PathLike):
        return _tree(path_text(path), storage_options), []
    texts = [path_text(one) for one in path]
    if not texts:
        raise SourceError("An empty list of images was given: expected one or more.")
    split = [
        text.partition("?") if is_url(text) else (str(Path(text).absolute()), "", "")
        for text in texts
    ]
    places = [PurePosixPath(place.rstrip("/")) for place, _, _ in split]
    queries = {query for _, _, query in split}
    are_of_one_kind = len({place.is_absolute() for place in places}) == 1
    # The first part of a path is "/", or the scheme of a URL, whose second is the server.
    root = PurePosixPath(
        os.path.commonpath([place.parent for place in places]) if are_of_one_kind else "."
    )
    least = 2 if is_url(texts[0]) else 1
    if len(queries) > 1 or len(root.parts) < least:
        raise SettingsError(
            f"The images in a list need a folder or server in common, and the same options after "
            f"'?', but {texts[0]} and others of {len(texts)} have none: make a dataset of each "
            f"and join them by torch.utils.data.ConcatDataset."
        )
    whole = str(root).replace(":/", "://", 1) if least == 2 else str(root)
    query = f"?{queries.pop()}" if any(queries) else ""
    inside = [place.relative_to(root).as_posix() for place in places]
    return _tree(f"{whole}{query}", storage_options), inside


def _tree(text: str, storage_options: StorageOptions) -> FileTree:
    if not is_url(text):
        return LocalTree(text)
    # Arrow takes a while to import, which processes that decode local images go without.
    from fastloader.sources._remote_tree import RemoteTree  # noqa: PLC0415

    return RemoteTree(text, storage_options)
