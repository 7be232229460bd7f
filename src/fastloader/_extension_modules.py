"""Modules in C, which are optional: without a compiler the package is installed without them."""

import importlib
import os
from types import ModuleType

__all__ = ["KERNELS", "RAW_FILES", "ROW_TEAM", "TWISTERS", "extension_module", "import_error"]

KERNELS = "fastloader.transforms._kernels"
RAW_FILES = "fastloader.sources._raw_files"
ROW_TEAM = "fastloader.threads._row_team"
TWISTERS = "fastloader.randomness._twisters"


def extension_module(name: str) -> ModuleType | None:
    """Return a module of this package that is written in C.

    Args:
        name: With the packages that it is in.

    Returns:
        None if it was not built, cannot be imported, or ``FASTLOADER_KERNELS`` is 0.
    """
    try:
        return _imported(name)
    except ImportError:
        return None


def import_error(name: str) -> ImportError | None:
    """Return why a module that was built cannot be imported: of another system, or damaged.

    Args:
        name: As for `extension_module`.

    Returns:
        None if it can be, was not built, or is not wanted.
    """
    try:
        _imported(name)
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        return error
    return None


def _imported(name: str) -> ModuleType | None:
    is_wanted = os.environ.get("FASTLOADER_KERNELS") != "0"
    return importlib.import_module(name) if is_wanted else None
