"""What a path is, and what a URL: without a library that opens either."""

import os
import re
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

__all__ = ["PathLike", "StorageOptions", "is_url", "path_text"]

PathLike: TypeAlias = str | os.PathLike[str]
StorageOptions: TypeAlias = Mapping[str, Any] | None
"""Arguments of fsspec's file system."""

_URL = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+)://|([A-Za-z][A-Za-z0-9+.-]+)::"
)  # no drive letter


def path_text(path: PathLike) -> str:
    """Return a path or URL as text; URLs of local files as their paths."""
    text = os.fspath(path)
    return unquote(urlsplit(text).path) if text.startswith("file://") else text


def is_url(text: str) -> bool:
    """Return True for what leads off this machine, or through another file system.

    Args:
        text: As `path_text` returns it.
    """
    return _URL.match(text) is not None
