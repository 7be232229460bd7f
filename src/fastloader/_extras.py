"""Optional packages, imported where something needs one."""

import importlib
from types import ModuleType

from fastloader.errors import MissingExtraError

__all__ = ["import_extra"]


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional package.

    Args:
        module: Name of the module.
        extra: Name of this package's extra that installs it.
        what: What it is needed for, as the subject of a sentence.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs the package {module.partition('.')[0]} ({error}): pip install "
            f'"fastloader[{extra}]".'
        ) from error
