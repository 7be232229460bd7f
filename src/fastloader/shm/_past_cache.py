"""Copies past the processor's caches, of batches that no cache holds until somebody reads them.

An ordinary copy reads each line that it is about to write, and drives others out of the cache; where several workers
copy, the memory is what they wait for. So batches cost less from 16 MB on, whoever reads them next, a device, another
process or the same thread: on two cores with 32 MB of cache those of 77 MB came from 4.2 to 3.0 ms, and with all
of them read after that from 7.0 to 5.8. The C library writes past the cache only with single copies of many
megabytes, and from which size on is settled when a program starts (``GLIBC_TUNABLES``). Neither NumPy nor
torch offers it. So it is compiled (`threads/_row_team.c`): on the 16 cores of an H200's machine, eight
processes that write batches came from 46 to 91 GB/s by such stores.
"""

from functools import cache

from fastloader.threads._crew import row_team

__all__ = [
    "LEAST_BYTES",
    "LEAST_ROW_BYTES",
    "knows_past_cache",
    "may_go_past_cache",
]

LEAST_ROW_BYTES = 1 << 16
"""Of a row: to look at each takes a microsecond."""

LEAST_BYTES = 16 << 20
"""Of all rows: fewer may still be in the cache when somebody reads them."""

LEAST_GATHERED_ROW_BYTES = 1 << 14
"""Of a row that is taken out of many: nobody looks at each."""

LEAST_GATHERED_BYTES = 8 << 20
"""Of such rows, which come from memory: with an ordinary copy they would pass through the cache, too."""

_LINE_BYTES = 64
_ALIGNMENT_BYTES = 16


def may_go_past_cache(
    num_rows: int, row_bytes: int, target: int, *, is_gathered: bool = False
) -> bool:
    """Tell whether rows can be copied past the cache, and whether that is worth it.

    Args:
        num_rows: How many follow one another in the target.
        row_bytes: Of each.
        target: Address of the first byte.
        is_gathered: Whether they are rows of something large, that no cache holds.
    """
    least_row_bytes = LEAST_GATHERED_ROW_BYTES if is_gathered else LEAST_ROW_BYTES
    least_bytes = LEAST_GATHERED_BYTES if is_gathered else LEAST_BYTES
    return (
        row_bytes >= least_row_bytes
        and num_rows * row_bytes >= least_bytes
        and row_bytes % _LINE_BYTES == 0
        and target % _ALIGNMENT_BYTES == 0
        and knows_past_cache()
    )


@cache
def knows_past_cache() -> bool:
    """Tell whether `copy_rows` knows how to copy past the cache.

    It does not without the `row_team`, or where that was compiled for a processor other than x86 with SSE2.
    """
    team = row_team()
    return team is not None and bool(team.KNOWS_PAST_CACHE)
