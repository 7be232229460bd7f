"""The kernels in C, where they were built: they do what NumPy does here, to the last bit."""

from functools import cache
from types import ModuleType

import torch

from fastloader._extension_modules import KERNELS, extension_module

__all__ = ["MOST_BYTES", "kernels", "kernels_for"]

MOST_BYTES = 8
"""Of a pixel that the kernels move: complex128 has more."""


@cache
def kernels() -> ModuleType | None:
    """Return the module; None where there is no `extension_module` for it."""
    return extension_module(KERNELS)


def kernels_for(*tensors: torch.Tensor) -> ModuleType | None:
    """Return the kernels if there are any, and these tensors are contiguous on the CPU."""
    are_fit = all(each.device.type == "cpu" and each.is_contiguous() for each in tensors)
    return kernels() if are_fit else None
