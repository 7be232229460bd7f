"""The error that this package raises where CUDA refuses something."""

__all__ = ["CudaCallError"]


class CudaCallError(Exception):
    """CUDA or its compiler refused a call; never leaves the package."""
