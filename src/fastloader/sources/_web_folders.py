"""Folders of web servers: which URLs are some, and which links in their lists are what is inside."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

__all__ = ["is_web_folder", "is_web_path", "tell_folders"]

_AT_ONCE = 16
_FOLDER = "directory"


def is_web_path(path: str) -> bool:
    """Tell whether a path of fsspec's file systems is one of a web server."""
    return path.startswith(("http://", "https://"))


def tell_folders(system: Any, folder: str, links: Mapping[str, str]) -> dict[str, str]:
    """Return what is in a folder, with its kinds.

    Servers link to the same list in another order, and to the folder itself. Not all end folders
    in a slash: where no link does, the server is asked.

    Args:
        system: fsspec's file system of web servers.
        folder: URL of the folder.
        links: URLs in its list, and "directory" for those that end in a slash.
    """
    inside = {
        link: kind
        for link, kind in links.items()
        if not {"?", "#"} & set(link) and link.strip("/") != folder.strip("/")
    }
    if _FOLDER not in inside.values():
        inside |= dict.fromkeys(_ask_for_folders(system, inside), _FOLDER)
    return inside


def _ask_for_folders(system: Any, links: Iterable[str]) -> list[str]:
    """Ask about each link without a suffix, and about the first of those with the same one.

    Files of one suffix may be many, and are of one kind.
    """
    kinds = {link: PurePosixPath(link).suffix.lower() or link for link in links}
    asked: dict[str, str] = {}
    for link, kind in kinds.items():
        asked.setdefault(kind, link)
    with ThreadPoolExecutor(_AT_ONCE, "fastloader-remote") as pool:
        answers = pool.map(lambda link: is_web_folder(system, link), asked.values())
        is_folder = dict(zip(asked, answers, strict=True))
    return [link for link, kind in kinds.items() if is_folder[kind]]


def is_web_folder(system: Any, link: str) -> bool:
    """Tell whether a server leads on to a name with a slash, or answers with a page of its own.

    Args:
        system: fsspec's file system of web servers.
        link: A URL.
    """
    try:
        info = system.info(link)
    except FileNotFoundError:
        return False  # a link to something else
    is_page = info.get("mimetype") == "text/html" and ".htm" not in PurePosixPath(link).suffix
    return is_page or str(info.get("url")).endswith("/")
