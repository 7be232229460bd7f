"""Locks memory of our own, so that a CUDA device copies from it at full speed."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import torch

__all__ = ["lock_pages"]

logger = logging.getLogger("fastloader")

_REGISTERED_ALREADY = 712  # cudaErrorHostMemoryAlreadyRegistered


def lock_pages(address: int, size_bytes: int) -> Callable[[], None]:
    """Lock memory of our own for copies to a CUDA device.

    Torch keeps no account of such memory: only `CopyStream`, which holds it until its copies are
    over, may copy from it. Where the system does not allow it, copies are slower, and a
    warning says so once.

    Args:
        address: Of the first byte, at the start of a page.
        size_bytes: Whole pages.

    Returns:
        What unlocks the memory; to be called while it is mapped.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    try:
        status = runtime.cudaHostRegister(address, size_bytes, 0)
        if int(status) == _REGISTERED_ALREADY:
            # By a call that was interrupted after it, perhaps for pages that lay there before.
            _forget_last_error()
            runtime.cudaHostUnregister(address)
            status = runtime.cudaHostRegister(address, size_bytes, 0)
        torch.cuda.check_error(status)
    except torch.cuda.CudaError as error:
        _forget_last_error()
        _warn_unlocked(str(error))
        return lambda: None

    def unlock() -> None:
        runtime.cudaHostUnregister(address)

    return unlock


def _forget_last_error() -> None:
    """Let CUDA report an error that was dealt with here, not whoever launches a kernel next."""
    with suppress(RuntimeError):
        torch.zeros((), device="cuda").add_(1)


@cache
def _warn_unlocked(reason: str) -> None:
    logger.warning(
        "Memory of batches cannot be locked for the device (%s), so copying them takes several "
        "times as long. Raise the limit of locked memory (ulimit -l).",
        reason,
    )
