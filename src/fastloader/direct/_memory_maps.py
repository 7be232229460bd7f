"""What lies behind addresses of this process: memory of its own, or a file, or a parent's."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Mapping", "read_mappings"]

_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+) *(.*)")
_IN_MEMORY = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")  # noqa: S108 - as the system names them


class Mapping(NamedTuple):
    """A piece of the address space."""

    is_private: bool
    """Whether pages are copied when they are written to."""
    file: str | None
    """That its pages come from, unless that is memory as well."""
    common_bytes: int
    """In pages that other processes have at the moment, too."""


def read_mappings(
    start: int, stop: int, path: Path = Path("/proc/self/smaps")
) -> list[Mapping]:
    """Return the pieces that lie, in part at least, in a range of addresses.

    Raises:
        OSError: If it does not tell.
    """
    return list(_read(start, stop, path))


def _read(start: int, stop: int, path: Path) -> Iterator[Mapping]:
    found: Mapping | None = None
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            head = _HEAD.match(line)
            if head is None:
                if found is not None and line.startswith("Shared_"):  # clean, then dirty
                    more = int(line.split()[1]) * 1024
                    found = found._replace(common_bytes=found.common_bytes + more)
                continue
            if found is not None:
                yield found
                found = None
            first, last, rights, inode, name = head.groups()
            if int(first, 16) >= stop:
                return  # they are in order
            if int(last, 16) > start:
                is_file = inode != "0" and not name.startswith(_IN_MEMORY)
                found = Mapping(rights[3] == "p", name if is_file else None, 0)
    if found is not None:
        yield found
