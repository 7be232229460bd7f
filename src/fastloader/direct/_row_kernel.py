"""A kernel that gathers rows out of locked host memory, on a small part of the device.

A device reads host memory nearly as fast as it copies it, 49 of 55 GB/s on an H200, if enough reads
are under way: the eighth of a megabyte that two full blocks of threads hold. A multiprocessor with such a block
is as good as lost to training, and one with a smaller block is slow: beside two of 1,024 threads the steps of
a captured network took 10 % longer, beside eight of 512 threads 22 to 40 % (beside copies of pinned memory
4 %). One block alone comes to 40 GB/s. Torch's ``index_select`` fills the whole device with threads that wait: ten
matrix products beside it took 4.8 ms in place of 1.7, beside eight blocks of this kernel 2.1. One copy for each row (``cuMemcpyBatchAsync``) leaves
the device as free, but costs the CPU 0.5 to 1 us a row, in which no other thread can queue kernels.
Hopper's bulk copies (``cp.async.bulk``), by one thread of each of 4 to 10 blocks, came to 37 to 40 GB/s where this
kernel came to 47, and left a captured training step no more of its rate: 92 % with either.
"""

import ctypes
from functools import cache
from typing import Any

import torch

from fastloader.direct._compiler import compile_for
from fastloader.direct._cuda_error import CudaCallError
from fastloader.direct._driver import launch, load_functions, reads_host_addresses

__all__ = ["UNIT_BYTES", "prepare_kernels", "read_rows"]

UNIT_BYTES = (16, 8, 4)
"""What a thread reads at once, as rows allow; smaller units are slower than gathering here."""

_NUM_BLOCKS = 2
_NUM_THREADS = 1024

_SOURCE = """
typedef long long Long;

// Each warp copies pieces of rows: all its reads are under way before the first write.
template <typename Unit>
__device__ void read_rows(const char* rows, Long stride_bytes, const Long* positions,
                          Long num_rows, Unit* target, Long row_units) {
  const int reads = 4, lanes = 32;
  const Long num_warps = (Long)gridDim.x * blockDim.x / lanes;
  const Long warp = ((Long)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
  const int lane = threadIdx.x % lanes;
  const Long num_pieces = (row_units + reads * lanes - 1) / (reads * lanes);
  for (Long job = warp; job < num_rows * num_pieces; job += num_warps) {
    const Long row = job / num_pieces;
    const Long first = job % num_pieces * reads * lanes + lane;
    const Unit* source = (const Unit*)(rows + positions[row] * stride_bytes);
    Unit* written = target + row * row_units;
    Unit kept[reads];
#pragma unroll
    for (int n = 0; n < reads; ++n)
      if (first + n * lanes < row_units) kept[n] = source[first + n * lanes];
#pragma unroll
    for (int n = 0; n < reads; ++n)
      if (first + n * lanes < row_units) written[first + n * lanes] = kept[n];
  }
}

#define READ_ROWS(name, Unit)                                                                \\
  extern "C" __global__ void name(const char* rows, Long stride_bytes, const Long* positions, \\
                                  Long num_rows, Unit* target, Long row_units) {             \\
    read_rows<Unit>(rows, stride_bytes, positions, num_rows, target, row_units);             \\
  }
READ_ROWS(read_by_16, uint4)
READ_ROWS(read_by_8, uint2)
READ_ROWS(read_by_4, unsigned int)
"""


@cache
def prepare_kernels(device: torch.device) -> dict[int, Any]:
    """Compile the kernel for a device, which takes a tenth of a second; for each unit, by its bytes.

    Args:
        device: A CUDA device, with its index, which is current.

    Raises:
        CudaCallError: If it cannot be compiled or loaded, or could not find the rows.
    """
    torch.zeros((), device=device)  # lets torch make the device's context current
    if not reads_host_addresses():
        raise CudaCallError("the device has other addresses for the memory")
    names = [f"read_by_{unit_bytes}" for unit_bytes in UNIT_BYTES]
    functions = load_functions(compile_for(device, _SOURCE), names)
    return dict(zip(UNIT_BYTES, functions, strict=True))


def read_rows(
    rows: int,
    stride_bytes: int,
    positions: torch.Tensor,
    target: torch.Tensor,
    stream: Any,
) -> None:
    """Queue reading rows of locked memory to the first axis of a tensor.

    Args:
        rows: Address of row 0, with `stride_bytes` and the bytes of a row divisible by 4.
        stride_bytes: From each row to the next.
        positions: Which rows, int64 on the device, shape ``(B,)``.
        target: Contiguous, on the device, shape ``(B, ...)``.
        stream: Where to queue it; its device is current.

    Raises:
        CudaCallError: If it cannot be queued.
    """
    row_bytes = target.nbytes // len(target)
    unit_bytes = next(
        unit
        for unit in UNIT_BYTES
        if not (rows % unit or stride_bytes % unit or row_bytes % unit)
    )
    arguments = (
        ctypes.c_void_p(rows),
        ctypes.c_longlong(stride_bytes),
        ctypes.c_void_p(positions.data_ptr()),
        ctypes.c_longlong(len(positions)),
        ctypes.c_void_p(target.data_ptr()),
        ctypes.c_longlong(row_bytes // unit_bytes),
    )
    kernel = prepare_kernels(target.device)[unit_bytes]
    launch(kernel, _NUM_BLOCKS, _NUM_THREADS, stream.cuda_stream, arguments)
