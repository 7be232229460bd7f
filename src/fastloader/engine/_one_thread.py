"""Holds the numerical libraries of a worker process to one thread each."""

import ctypes
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["find_libraries", "use_one_thread"]


def find_libraries() -> ThreadpoolController:
    """Return the numerical libraries that this process has loaded.

    **Processes:** the one that forks a worker: it takes under a millisecond there, and several in
    the worker, where each page that is looked at has to be copied first.
    """
    return ThreadpoolController()


def use_one_thread(libraries: ThreadpoolController | None) -> None:
    """Let torch, BLAS and OpenMP compute in the calling thread alone.

    **Processes:** workers, of which there is one for each core.

    Args:
        libraries: What is loaded, as the process that was forked has found it; None looks here.
    """
    torch.set_num_threads(1)
    for library in (libraries or find_libraries()).lib_controllers:
        if not _holds_openblas(library):
            library.set_num_threads(1)


def _holds_openblas(library: Any) -> bool:
    # In a forked process OpenBLAS's own function starts the threads anew, for every core of the
    # machine, and each spins for a tenth of a second, before it lets them be. This is the number
    # that the function would set, and all that decides whether threads are used.
    if library.internal_api != "openblas":
        return False
    try:
        number = ctypes.c_int.in_dll(library.dynlib, "blas_cpu_number")
    except ValueError:  # a build that does not show it
        return False
    number.value = 1
    return True
