"""Modules in C, which are optional: without a compiler the package is installed without them."""

import importlib
import os
from types import ModuleType

__all__ = ["extension_module"]


def extension_module(name: str) -> ModuleType | None:
    """Return a module of this package that is written in C.

    Args:
        name: With the packages that it is in.

    Returns:
        None if it was not built, or ``FASTLOADER_KERNELS`` is 0.
    """
    if os.environ.get("FASTLOADER_KERNELS") == "0":
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
