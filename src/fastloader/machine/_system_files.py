"""Small files in which the system tells of itself."""

import os

__all__ = ["read_field", "read_text"]

_MOST_BYTES = 1 << 16
"""To ask for at once: more than nearly all of these files hold."""


def read_text(path: str) -> str:
    """Return what a file holds, or nothing if it cannot be read.

    By the calls of the system alone, as a new loader reads several: `pathlib` takes three times as long.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(descriptor, _MOST_BYTES):
            parts.append(part)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def read_field(path: str, name: str) -> int | None:
    """Return the number that follows a name in a file of lines of names and numbers.

    Args:
        path: Of the file.
        name: As it stands there, with a colon if it has one.

    Returns:
        The number; None if the name or the file is not there.
    """
    _, is_there, rest = f"\n{read_text(path)}".partition(f"\n{name} ")
    return int(rest.split(maxsplit=1)[0]) if is_there else None
