"""Folders of Delta and Iceberg tables, whose logs say which files count: refused where not all do."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from fastloader.errors import SourceError
from fastloader.sources._file_errors import naming
from fastloader.sources._location import Location

__all__ = ["check_log"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is known of the logs of a kind of table."""

    name: str
    is_log: Callable[[PurePosixPath], bool]
    is_in_lines: bool
    """Whether each line is a document of JSON, not the file."""
    leaves_out: Callable[[Any], bool]
    """Returns whether by a document not all files count, or not all of their rows."""
    remedy: str


_KINDS = (
    _Kind(
        "a Delta table",
        lambda path: (
            path.parent.name == "_delta_log"
            and path.suffix == ".json"
            and path.stem.isdecimal()
        ),
        True,
        lambda action: (
            "remove" in action or bool((action.get("add") or {}).get("deletionVector"))
        ),
        "deltalake.DeltaTable(...).file_uris()",
    ),
    _Kind(
        "an Iceberg table",
        lambda path: path.parent.name == "metadata" and path.name.endswith(".metadata.json"),
        False,
        lambda metadata: any(
            (snapshot.get("summary") or {}).get("operation", "append") != "append"
            for snapshot in metadata.get("snapshots") or ()
        ),
        "pyiceberg's plan_files()",
    ),
)


def check_log(folder: Location, files: Mapping[str, str]) -> None:
    """Check that no file of a folder was taken out of the table that it is.

    Args:
        folder: The folder.
        files: All files below it, hidden ones too: as people write their paths, and as listed.

    Raises:
        SourceError: If files or rows of them were, or the log is damaged or without its beginning.
    """
    for kind in _KINDS:
        logs = sorted(plain for plain in files if kind.is_log(PurePosixPath(plain)))
        # Lines are of logs that are numbered from 0, and in time the first are deleted.
        is_cut_off = bool(logs) and kind.is_in_lines and int(PurePosixPath(logs[0]).stem) > 0
        if is_cut_off or any(_leaves_out(kind, folder.inside(files[plain])) for plain in logs):
            raise SourceError(
                f"{folder.path} is {kind.name} of which files or rows were replaced or deleted, "
                f"so that not all files that are there count. Give those that do, as a list "
                f"({kind.remedy}), or write the table as Parquet."
            )


def _leaves_out(kind: _Kind, log: Location) -> bool:
    unfit = (ValueError, AttributeError, TypeError)
    with naming(log.path, "the log of a table, in JSON", *unfit), log.opened() as file:
        text = file.read().decode()
        documents = text.splitlines() if kind.is_in_lines else [text]
        return any(kind.leaves_out(json.loads(one)) for one in documents if one.strip())
