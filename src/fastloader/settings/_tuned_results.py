"""Results of `tune` in files: one for each kind of dataset, batch size and machine."""

import hashlib
import json
import logging
import platform
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fastloader._atomic import replacing
from fastloader.cache._disk_file import default_cache_folder
from fastloader.errors import DestinationError
from fastloader.inspection._description import describe
from fastloader.machine._machine import Machine, read_processor
from fastloader.settings._settings import LoaderSettings

__all__ = ["check_folder", "load_result", "result_path", "save_result"]

_VERSION = 1
"""Of the form of the files; another one is not read."""

_TOO_MANY = 1 << 16
"""Workers, batches ahead or seconds that nobody has measured."""

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
        machine: Its kind of processor, CPUs, ranks and accelerator count; its name and how much memory is
            free do not.
        folder: Cache folder; the user's by default.
    """
    facts = {
        "dataset": describe(dataset),
        "batch_size": batch_size,
        "system": [sys.platform, platform.machine(), read_processor()],
        "granted_cpus": machine.granted_cpus,
        "local_world_size": machine.local_world_size,
        "accelerator": machine.accelerator,
    }
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    name = f"{type(dataset).__name__}-{digest}.json"
    return (default_cache_folder() if folder is None else folder) / "tuned" / name


def check_folder(path: Path) -> None:
    """Make the folder of a result, and see whether a file can be made there.

    Args:
        path: From `result_path`.

    Raises:
        DestinationError: If not.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise DestinationError(
            f"{path.parent} cannot be written to ({error}), so the result could not be stored: give "
            "cache_dir (--cache-dir), set FASTLOADER_CACHE_DIR, or do without by save=False "
            "(--no-save)."
        ) from error


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
        _check_types(document)
        return LoaderSettings(**document["settings"], reasons=document["reasons"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _warn(path, error)
        return None


def _check_types(document: Mapping[str, Any]) -> None:
    """Refuse values that no setting or reason has.

    Raises:
        TypeError: If there is one.
    """
    values = document["settings"]
    if not all(isinstance(reason, str) for reason in document["reasons"].values()):
        raise TypeError("reasons should be texts")
    for name, hint in get_type_hints(LoaderSettings).items():
        if name in values and not _fits(values[name], hint):
            raise TypeError(f"{name} is {values[name]!r}")


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if type(value) is int and value >= _TOO_MANY:
        return False
    return type(value) in kinds or (float in kinds and type(value) is int)


def _warn(path: Path, error: Exception) -> None:
    warnings.warn(
        f"The stored result of tune in {path} cannot be used ({type(error).__name__}: {error}), "
        "so the settings are automatic: run fastloader.tune again, which replaces the file, or "
        "delete it.",
        stacklevel=2,
    )
