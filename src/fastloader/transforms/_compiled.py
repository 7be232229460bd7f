"""The kernels in C, where they were built: they do what NumPy does here, to the last bit."""

import importlib
import os
from types import ModuleType

import torch

__all__ = ["MOST_BYTES", "kernels", "kernels_for"]

MOST_BYTES = 8
"""Of a pixel that the kernels move: complex128 has more."""


def _load() -> ModuleType | None:
    # Optional: without a C compiler the package is installed without it.
    if os.environ.get("FASTLOADER_KERNELS") == "0":
        return None
    try:
        return importlib.import_module("fastloader.transforms._kernels")
    except ImportError:
        return None


kernels = _load()
"""The module, or None if it was not built or ``FASTLOADER_KERNELS`` is 0."""


def kernels_for(*tensors: torch.Tensor) -> ModuleType | None:
    """Return the kernels if there are any, and these tensors are contiguous on the CPU."""
    if kernels is None:
        return None
    are_fit = all(each.device.type == "cpu" and each.is_contiguous() for each in tensors)
    return kernels if are_fit else None
