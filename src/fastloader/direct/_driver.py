"""The few calls of CUDA's driver that torch does not offer.

Reference: CUDA Driver API, ``cuDeviceGetAttribute``, ``cuModuleLoadData``, ``cuLaunchKernel`` and
``cuThreadExchangeStreamCaptureMode``.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from fastloader.direct._cuda_error import CudaCallError

__all__ = ["launch", "load_functions", "reads_host_addresses", "uncaptured"]

_LIBRARY = "libcuda.so.1"
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_SAME_ADDRESSES = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM


def reads_host_addresses() -> bool:
    """Tell whether locked memory has the same addresses on the current device as here.

    Raises:
        CudaCallError: If the driver does not tell.
    """
    library, device, value = _library(), ctypes.c_int(), ctypes.c_int()
    _check(library.cuCtxGetDevice(ctypes.byref(device)))
    _check(library.cuDeviceGetAttribute(ctypes.byref(value), _SAME_ADDRESSES, device))
    return bool(value.value)


def load_functions(code: bytes, names: Sequence[str]) -> list[Any]:
    """Return handles of functions in machine code, loaded for the current device to stay.

    Args:
        code: From `compile_for`.
        names: Of the functions.

    Raises:
        CudaCallError: If they cannot be loaded.
    """
    library = _library()
    module = ctypes.c_void_p()
    _check(library.cuModuleLoadData(ctypes.byref(module), code))
    functions = []
    for name in names:
        function = ctypes.c_void_p()
        _check(
            library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()),
        )
        functions.append(function)
    return functions


def launch(
    function: Any, num_blocks: int, num_threads: int, stream: int, arguments: Sequence[Any]
) -> None:
    """Queue a function on a stream of the current device.

    Args:
        function: From `load_functions`.
        num_blocks: Of threads.
        num_threads: In each block.
        stream: Handle of the stream.
        arguments: Values of `ctypes`, of the types that the function takes.

    Raises:
        CudaCallError: If it cannot be queued.
    """
    addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    _check(
        _library().cuLaunchKernel(
            function, num_blocks, 1, 1, num_threads, 1, 1, 0, ctypes.c_void_p(stream),
            addresses, None,
        )
    )  # fmt: skip


@contextmanager
def uncaptured() -> Iterator[None]:
    """Let this thread make calls while another one captures a CUDA graph.

    A capture ends with an error if any thread makes a call that might wait for the device. Without a
    driver of CUDA's, as with AMD's devices, nothing is done.
    """
    exchange = _exchange_of_modes()
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@cache
def _exchange_of_modes() -> Any:
    try:
        return _library().cuThreadExchangeStreamCaptureMode
    except CudaCallError:
        return None


def _check(status: int) -> None:
    if status:
        raise CudaCallError(f"CUDA's driver refuses with error {status}")


@cache
def _library() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise CudaCallError(f"there is no CUDA driver ({error})") from error
