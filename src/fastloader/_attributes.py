"""Walks what an object holds in plain sight, with the path to each part."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["walk_attributes"]

LONGEST_CONTAINER = 64  # elements of a container that are looked at
MOST_PARTS = 2000


def walk_attributes(obj: object, name: str, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield an object and what its attributes, and the containers in them, hold.

    Nothing of the object is called: only ``__dict__``, lists, tuples and mappings are looked
    into, the first elements of long ones.

    Args:
        obj: A dataset, say.
        name: What to call it in the paths.
        depth: Steps to follow from the object.

    Yields:
        Path like ``dataset.sources[2].file``, and value; each object once.
    """
    seen: set[int] = set()
    waiting = [(name, obj, depth)]
    while waiting and len(seen) < MOST_PARTS:
        path, value, rest = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if rest > 0:
            waiting.extend((step, part, rest - 1) for step, part in _parts(path, value))


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, str | bytes | int | float | type):
        return
    if isinstance(value, Mapping):
        for number, (key, part) in enumerate(value.items()):
            if number == LONGEST_CONTAINER:
                return
            yield f"{path}[{key!r}]", part
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value[:LONGEST_CONTAINER]):
            yield f"{path}[{number}]", part
    else:
        for key, part in tuple(getattr(value, "__dict__", {}).items()):
            yield f"{path}.{key}", part
