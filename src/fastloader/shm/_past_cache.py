"""Copies past the processor's caches, into memory that a device reads next.

An ordinary copy reads each line that it is about to write, and drives others out of the cache; where several workers
copy, the memory is what they wait for. The C library writes past the cache only with single copies of many
megabytes, and from which size on is settled when a program starts (``GLIBC_TUNABLES``). Neither NumPy nor
torch offers it. So the fifteen instructions are here, which all processors of the kind have. On the 16 cores of
an H200's machine, eight processes that write batches came from 46 to 91 GB/s by them.

References: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (MOVDQU, MOVNTDQ, SFENCE);
System V Application Binary Interface, AMD64 supplement, section 3.2.3 (where arguments are).
"""

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable, Iterable
from functools import cache

__all__ = ["PastCache", "past_cache"]

LEAST_ROW_BYTES = 1 << 16
"""Of a row: each costs a call, a microsecond."""

LEAST_BYTES = 16 << 20
"""Of all rows: fewer may still be in the cache when the device reads them."""

_LINE_BYTES = 64
_ALIGNMENT_BYTES = 16

_CODE = bytes.fromhex(
    # rdi: target, aligned to 16 bytes; rsi: source; rdx: bytes, whole lines of 64
    "f30f6f06"  # next: movdqu xmm0, [rsi]
    "f30f6f4e10"  # movdqu xmm1, [rsi + 16]
    "f30f6f5620"  # movdqu xmm2, [rsi + 32]
    "f30f6f5e30"  # movdqu xmm3, [rsi + 48]
    "660fe707"  # movntdq [rdi], xmm0
    "660fe74f10"  # movntdq [rdi + 16], xmm1
    "660fe75720"  # movntdq [rdi + 32], xmm2
    "660fe75f30"  # movntdq [rdi + 48], xmm3
    "4883c640"  # add rsi, 64
    "4883c740"  # add rdi, 64
    "4883ea40"  # sub rdx, 64
    "75cc"  # jnz next
    "0faef8"  # sfence: all of it is written before anybody is told
    "c3"  # ret
)


class PastCache:
    """Copies rows past the cache; see `past_cache`.

    Args:
        copy: Takes the addresses of target and source, and how many bytes.
    """

    def __init__(self, copy: Callable[[int, int, int], object]) -> None:
        self._copy = copy

    @staticmethod
    def suits(num_rows: int, row_bytes: int, target: int) -> bool:
        """Tell whether rows can be copied here, and whether that is worth it.

        Args:
            num_rows: How many follow one another in the target.
            row_bytes: Of each.
            target: Address of the first byte.
        """
        return (
            row_bytes >= LEAST_ROW_BYTES
            and num_rows * row_bytes >= LEAST_BYTES
            and row_bytes % _LINE_BYTES == 0
            and target % _ALIGNMENT_BYTES == 0
        )

    def copy_rows(self, sources: Iterable[int], row_bytes: int, target: int) -> None:
        """Copy rows one after the other; other threads have the interpreter meanwhile.

        Args:
            sources: Address of each row.
            row_bytes: Of each.
            target: Address of the first byte; all of it `suits`.
        """
        for source in sources:
            self._copy(target, source, row_bytes)
            target += row_bytes


@cache
def past_cache() -> PastCache | None:
    """Return what copies past the cache in this process, or None where nothing can."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return None
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.write(_CODE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        return None  # a policy of the system forbids it
    copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(address)
    copy.page = page  # type: ignore[attr-defined]  # to be mapped as long
    return PastCache(copy)
