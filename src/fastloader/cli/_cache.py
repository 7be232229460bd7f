"""``fastloader cache``: decoded pixels on disk, and how to get rid of them."""

import argparse
import time
from pathlib import Path

from fastloader.cli._numbers import size
from fastloader.cli._report import Report

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "list the files of decoded pixels (cache='disk'), or remove them"
DESCRIPTION = (
    "List the files that datasets with cache='disk' left in the cache folder. With --clear "
    "or --max-bytes remove those that no process uses, those first that were not used for "
    "longest."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="FOLDER",
        help="where they are (default: FASTLOADER_CACHE_DIR, or the user's cache folder)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--clear", action="store_true", help="remove all that no process uses")
    what.add_argument(
        "--max-bytes", type=size, metavar="SIZE", help="remove until this is left, such as 20GB"
    )


def run(arguments: argparse.Namespace) -> Report:
    """Look at the folder, and remove what is to be removed."""
    from fastloader.cache import (  # noqa: PLC0415 - help needs no torch
        default_cache_folder,
        find_cache_files,
        remove_cache_files,
    )

    folder = arguments.cache_dir or default_cache_folder()
    files = find_cache_files(folder)
    removed = []
    max_bytes = 0 if arguments.clear else arguments.max_bytes
    if max_bytes is not None:
        removed = list(remove_cache_files(files, max_bytes))
    left_bytes = sum(file.num_bytes for file in files if file not in removed)
    table = [("file", "MB", "last used", "")]
    for file in files:
        told = "removed" if file in removed else "in use" if file.is_in_use else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.last_used))
        table.append((file.path.name, f"{file.num_bytes / 1e6:,.1f}", when, told))
    summary = f"{folder}: {len(files) - len(removed)} files, {left_bytes / 1e6:,.1f} MB"
    if max_bytes is not None:
        freed_bytes = sum(file.num_bytes for file in removed)
        summary += f"; {len(removed)} removed, {freed_bytes / 1e6:,.1f} MB"
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return Report(
        "\n".join([*(lines if files else []), summary]),
        {
            "folder": str(folder),
            "bytes": left_bytes,
            "files": [
                {
                    "path": str(file.path),
                    "bytes": file.num_bytes,
                    "last_used": file.last_used,
                    "in_use": file.is_in_use,
                    "removed": file in removed,
                }
                for file in files
            ],
        },
        parts=((table, summary) if files else (summary,)),
    )
