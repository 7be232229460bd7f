"""Compiles CUDA C++ by NVRTC, the compiler that comes with torch's builds for CUDA.

Reference: NVRTC documentation, ``nvrtc.h``.
"""

import ctypes
import importlib.util
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fastloader.direct._cuda_error import CudaCallError

__all__ = ["compile_for"]


def compile_for(device: torch.device, source: str) -> bytes:
    """Return machine code of a program for a device.

    Args:
        device: A CUDA device, with its index.
        source: CUDA C++ without includes.

    Raises:
        CudaCallError: If there is no compiler, or it refuses.
    """
    library = _library()
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    program = ctypes.c_void_p()
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"rows.cu", 0, None, None
        )
    )
    try:
        count = len(options)
        _check(library.nvrtcCompileProgram(program, count, (ctypes.c_char_p * count)(*options)))
        size = ctypes.c_size_t()
        _check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(library.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _check(status: int) -> None:
    if status:
        raise CudaCallError(f"NVRTC refuses with error {status}")


@cache
def _library() -> Any:
    """Return the library of the version that torch was built for.

    Raises:
        CudaCallError: If it is not found.
    """
    name = f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}"
    package = importlib.util.find_spec("nvidia")  # the folder of NVIDIA's wheels
    folders = [] if package is None else package.submodule_search_locations or []
    wheels = [path for folder in folders for path in Path(folder).glob(f"*/lib/{name}")]
    for path in (name, *map(str, wheels)):
        with suppress(OSError):
            return ctypes.CDLL(path)
    raise CudaCallError(f"NVRTC ({name}) is not installed")
