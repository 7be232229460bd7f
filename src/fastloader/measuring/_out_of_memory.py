"""Whether an error says that memory has run out, on any backend; and memory given back."""

import errno
import gc

import torch

__all__ = ["free_memory", "is_out_of_memory"]

_TEXTS = (
    "out of memory",  # CUDA, HIP, MPS, XPU, NPU
    "can't allocate memory",  # torch's allocator for the CPU
    "not enough memory",  # the same on Windows
    "bad_alloc",  # C++
    "alloc_failed",  # cuBLAS, cuSPARSE, cuDNN
    "allocation failed",  # HPU
    "failed to allocate",
    "resource_exhausted",  # XLA
    "cudnn_status_not_supported",  # what cuDNN says of work space that it does not get
    "unable to find a valid cudnn algorithm",  # the same
    "when calling `cublascreate(",  # of the space for its handle, whatever the status
    "invalid buffer size",  # MPS, of one tensor that is larger than a buffer may be
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or what it was raised from, says that memory has run out.

    Only CUDA and few others raise a type of its own; the rest raise `RuntimeError` and say it in
    words.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(seen, OSError) and seen.errno == errno.ENOMEM:
            return True
        if isinstance(seen, RuntimeError):
            text = str(seen).lower()
            if any(part in text for part in _TEXTS):
                return True
        seen = seen.__cause__ or seen.__context__
    return False


def free_memory() -> None:
    """Give back what nobody uses: cycles of Python, and blocks that allocators keep."""
    gc.collect()
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        module = torch.get_device_module(device)
        module.synchronize()
        if hasattr(module, "empty_cache"):
            module.empty_cache()
