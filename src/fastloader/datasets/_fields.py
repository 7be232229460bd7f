"""Find the image in a sample of any structure, and put another one in its place."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from fastloader.errors import ShapeError

__all__ = ["Field", "Path", "as_path", "find_image", "get_field", "replace_field"]

Path: TypeAlias = tuple[str | int, ...]
"""Keys, positions and attribute names, outermost first."""

Field: TypeAlias = str | int | Path | None
"""Where a value lies in a sample: a key, a position, an attribute name, a path of these.

The empty path ``()`` is the whole sample; None means: search for the image.
"""


def as_path(field: str | int | Path) -> Path:
    """Return a field as a path.

    Args:
        field: A key, a position, an attribute name, or a path of these.
    """
    return field if isinstance(field, tuple) else (field,)


def find_image(sample: Any, field: Field, *, batched: bool = False) -> Path:
    """Return the path of the image in a sample or a batch.

    Without a `field` this is the first tensor or array with two axes or more; if there is
    none, the only one with one axis. In a batch all have one axis more, so that a sample and
    the batch it is part of give the same path.

    Args:
        sample: A tensor, array, tuple, list, mapping, named tuple, dataclass, or any nesting.
        field: Where the image is, or None to search for it.
        batched: Whether `sample` is a collated batch.

    Raises:
        ShapeError: If no image, or no single one, is found.
    """
    if field is not None:
        return as_path(field)
    extra = int(batched)
    flat: list[Path] = []
    for path, array in _arrays(sample, ()):
        if array.ndim >= 2 + extra:
            return path
        if array.ndim == 1 + extra:
            flat.append(path)
    if len(flat) == 1:
        return flat[0]
    raise ShapeError(
        "Expected a sample with a tensor or array of two axes or more, or with only one of one "
        f"axis, but got {_describe(sample)}: say where the image is with field=, for example "
        'field="image" or field=0.'
    )


def get_field(sample: Any, path: Path) -> Any:
    """Return the value at `path`.

    Args:
        sample: As for `find_image`.
        path: As `find_image` returns it.

    Raises:
        ShapeError: If there is nothing at `path`.
    """
    value = sample
    for step in path:
        try:
            value = getattr(value, str(step)) if _by_attribute(value, step) else value[step]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ShapeError(
                f"Expected a value at field={_shown(path)}, but the sample is "
                f"{_describe(sample)}: correct field=."
            ) from error
    return value


def replace_field(sample: Any, path: Path, value: Any) -> Any:
    """Return a copy of `sample` with another value at `path`; all else is shared.

    Args:
        sample: As for `find_image`; it is not changed.
        path: As for `get_field`.
        value: What to put there.
    """
    if not path:
        return value
    step, rest = path[0], path[1:]
    if rest:
        value = replace_field(get_field(sample, (step,)), rest, value)
    if isinstance(sample, tuple):
        return _replace_in_tuple(sample, step, value)
    if isinstance(sample, Mapping) and not isinstance(sample, MutableMapping):
        return type(sample)({**sample, step: value})  # type: ignore[call-arg]
    changed = copy.copy(sample)
    if _by_attribute(sample, step):
        # Frozen dataclasses too: the copy is ours and nobody has seen it yet.
        object.__setattr__(changed, cast("str", step), value)
    else:
        changed[step] = value
    return changed


def _replace_in_tuple(sample: tuple[Any, ...], step: str | int, value: Any) -> Any:
    names = getattr(sample, "_fields", None)
    position = names.index(step) if isinstance(step, str) and names is not None else step
    values = list(sample)
    values[cast("int", position)] = value
    return type(sample)(values) if names is None else type(sample)(*values)


def _by_attribute(value: Any, step: str | int) -> bool:
    return isinstance(step, str) and not isinstance(value, Mapping) and hasattr(value, step)


def _arrays(sample: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(sample, torch.Tensor | np.ndarray):
        yield path, sample
        return
    for step, value in _children(sample):
        yield from _arrays(value, (*path, step))


def _children(sample: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(sample, Mapping):
        yield from sample.items()
    elif isinstance(sample, tuple | list):
        yield from enumerate(sample)
    elif dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        for field in dataclasses.fields(sample):
            yield field.name, getattr(sample, field.name)


def _describe(sample: Any, depth: int = 2) -> str:
    name = type(sample).__name__
    if isinstance(sample, torch.Tensor | np.ndarray):
        return f"{name} of shape {tuple(sample.shape)}"
    children = list(_children(sample))
    if not children or depth == 0:
        return name
    shown = ", ".join(f"{step!r}: {_describe(v, depth - 1)}" for step, v in children[:8])
    return f"{name} with {shown}{', ...' if len(children) > 8 else ''}"


def _shown(path: Path) -> str:
    return repr(path[0] if len(path) == 1 else path)
