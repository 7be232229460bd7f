"""Results of `tune` in files: one for each kind of dataset, batch size and machine."""

import hashlib
import json
import logging
import platform
import sys
import warnings
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastloader._atomic import replacing
from fastloader.cache._disk_file import default_cache_folder
from fastloader.inspection._description import describe
from fastloader.machine._machine import Machine
from fastloader.settings._settings import LoaderSettings

__all__ = ["load_result", "result_path", "save_result"]

_VERSION = 1
"""Of the form of the files; another one is not read."""

logger = logging.getLogger("fastloader")


def result_path(
    dataset: Any,
    batch_size: int | None,
    machine: Machine,
    folder: Path | None = None,
) -> Path:
    """Return the file of the result for a dataset on a machine, whether it is there or not.

    Args:
        dataset: As given to the loader; see `describe` for what counts.
        batch_size: Of the loader.
        machine: CPUs, ranks and accelerator count; how much memory is free does not.
        folder: Cache folder; the user's by default.
    """
    facts = {
        "dataset": describe(dataset),
        "batch_size": batch_size,
        "system": [sys.platform, platform.machine()],
        "granted_cpus": machine.granted_cpus,
        "local_world_size": machine.local_world_size,
        "accelerator": machine.accelerator,
    }
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    name = f"{type(dataset).__name__}-{digest}.json"
    return (default_cache_folder() if folder is None else folder) / "tuned" / name


def save_result(path: Path, settings: LoaderSettings, measured: Mapping[str, Any]) -> None:
    """Write a result; another one at the same place is replaced in one step.

    Args:
        path: From `result_path`.
        settings: What was chosen.
        measured: All that was measured, ready for JSON.

    Raises:
        DestinationError: If the folder cannot be written to.
    """
    values = {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if field.name not in {"reasons", "ignored"}
    }
    document = {
        "version": _VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": values,
        "reasons": dict(settings.reasons),
        "measured": measured,
    }
    with replacing(path, overwrite=True) as part:
        part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load_result(path: Path) -> LoaderSettings | None:
    """Return the settings of a stored result; None if there is none.

    A file that cannot be understood is warned of and left as it is.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        _warn(path, error)
        return None
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            logger.info("%s has another version than %d: tune again.", path, _VERSION)
            return None
        return LoaderSettings(**document["settings"], reasons=document["reasons"])
    except (ValueError, TypeError, KeyError) as error:
        _warn(path, error)
        return None


def _warn(path: Path, error: Exception) -> None:
    warnings.warn(
        f"The stored result of tune in {path} cannot be used ({type(error).__name__}: {error}), "
        "so the settings are automatic: run fastloader.tune again, which replaces the file, or "
        "delete it.",
        stacklevel=2,
    )
