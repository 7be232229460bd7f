"""What the addresses of this process stand for, as Linux tells it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Span", "read_spans"]


class Span(NamedTuple):
    """Addresses that were mapped together."""

    start: int
    stop: int
    """Address after the last."""
    rights: str
    """As ``rw-p``: may be read, written, run; private or shared."""
    offset_bytes: int
    """Where in its file it begins."""
    inode: int
    """Of the file; 0 for memory without one."""
    name: str
    """Path of the file, or what else the system calls it; may be empty."""


def read_spans(path: Path = Path("/proc/self/maps")) -> Iterator[Span]:
    """Give all that is mapped, by ascending addresses.

    Raises:
        OSError: If it does not tell.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            addresses, rights, offset, _device, inode, *name = line.split(maxsplit=5)
            start, stop = (int(part, 16) for part in addresses.split("-"))
            named = name[0].rstrip("\n") if name else ""
            yield Span(start, stop, rights, int(offset, 16), int(inode), named)
