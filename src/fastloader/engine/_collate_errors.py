"""Says which field of which sample made default collate fail, or lose something."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from fastloader.typing import Sample

__all__ = ["find_lost_keys", "find_misfits"]

LONGEST_LIST = 5

_LEAVES = {torch.Tensor, np.ndarray, int, float, str, bytes}
"""Types of what holds no keys."""


def find_misfits(samples: Sequence[Sample], indices: Sequence[Any]) -> str | None:
    """Describe the first field in which samples do not fit together.

    Args:
        samples: What default collate failed on.
        indices: Index of each sample in the dataset.

    Returns:
        A sentence that names field, kinds or shapes and sample indices, or None if all
        samples look alike.
    """
    return next(_misfits("", list(samples), list(indices)), None)


def find_lost_keys(samples: Sequence[Sample], indices: Sequence[Any]) -> str | None:
    """Tell of keys that default collate would drop, as the first sample does not have them.

    Args:
        samples: About to be collated.
        indices: Index of each sample in the dataset.

    Returns:
        A sentence, or None where all keys are kept, and where samples are given as no list.
    """
    first = samples[0] if isinstance(samples, list | tuple) and samples else None
    if type(first) in _LEAVES:
        return None
    if type(first) is tuple:  # as most are; to ask for an abstract class takes longer
        return _lost_inside(samples, indices)
    if isinstance(first, Mapping):
        size = len(first)
        if set(map(type, samples)) == {dict}:
            is_uneven = set(map(len, samples)) != {size}
        else:
            mappings = (sample for sample in samples if isinstance(sample, Mapping))
            is_uneven = any(len(sample) != size for sample in mappings)
        return _lost_keys(samples, indices) if is_uneven else _lost_inside(samples, indices)
    return _lost_inside(samples, indices) if isinstance(first, list | tuple) else None


def _lost_inside(samples: Sequence[Any], indices: Sequence[Any]) -> str | None:
    first = samples[0]
    has_keys = type(first) is not tuple and isinstance(first, Mapping)
    for step, part in first.items() if has_keys else enumerate(first):
        if type(part) in _LEAVES:
            continue
        try:
            parts = [sample[step] for sample in samples]
        except (LookupError, TypeError):
            continue  # not alike: collating them fails, and says so
        if (text := find_lost_keys(parts, indices)) is not None:
            return text
    return None


def _lost_keys(samples: Sequence[Any], indices: Sequence[Any]) -> str | None:
    first = samples[0]
    for sample, index in zip(samples, indices, strict=False):
        lost = [key for key in sample if key not in first]
        if lost:
            return (
                f"Sample {index} has the keys {lost} that sample {indices[0]}, the first of the "
                "batch, has not: default collate drops them. Give every sample the same keys, "
                "or write a collate_fn."
            )
    return None


def _misfits(path: str, samples: list[Any], indices: list[Any]) -> Iterator[str]:
    named = f"field {path}" if path else "the sample"
    missing = [i for s, i in zip(samples, indices, strict=False) if s is None]
    if missing:
        yield (
            f"{named} is None in the samples at index {_listed(missing)}: return a value for "
            "every sample, or leave these samples out of the dataset."
        )
        return
    first = samples[0]
    kinds = {_kind_of(s) for s in samples}
    if len(kinds) > 1:
        if _fit_together(samples):  # whole and decimal numbers, say
            return
        odd = next(
            i for s, i in zip(samples, indices, strict=False) if _kind_of(s) != _kind_of(first)
        )
        yield (
            f"{named} is {_kind_of(first)} at index {indices[0]} but another type at index "
            f"{odd}: {', '.join(sorted(kinds))}."
        )
    elif isinstance(first, Mapping):
        yield from _mapping_misfits(path, samples, indices)
    elif isinstance(first, list | tuple):
        yield from _sequence_misfits(path, named, samples, indices)
    else:
        if isinstance(first, torch.Tensor | np.ndarray) and not _is_nested(first):
            yield from _shape_misfits(named, samples, indices)
        yield from _leaf_misfits(named, samples, indices)


def _shape_misfits(named: str, samples: list[Any], indices: list[Any]) -> Iterator[str]:
    shape = tuple(samples[0].shape)
    for sample, index in zip(samples, indices, strict=False):
        if tuple(sample.shape) != shape:
            yield (
                f"{named} has shape {shape} at index {indices[0]} but {tuple(sample.shape)} at "
                f"index {index}: crop, resize or pad the samples to one shape, or write a "
                "collate_fn that does."
            )
            return


def _leaf_misfits(named: str, samples: list[Any], indices: list[Any]) -> Iterator[str]:
    for sample, index in zip(samples, indices, strict=False):
        if _fit_together([sample]):
            continue
        yield (
            f"{named} is {_full_kind_of(sample)} at index {index}, of which torch makes no "
            "batch: return dense tensors, numeric arrays, numbers or strings, or write a "
            "collate_fn."
        )
        return


def _fit_together(samples: list[Any]) -> bool:
    try:
        default_collate(samples)
    except Exception:  # noqa: BLE001 - whatever torch finds wrong with them
        return False
    return True


def _mapping_misfits(path: str, samples: list[Any], indices: list[Any]) -> Iterator[str]:
    for key in samples[0]:
        lacking = [i for s, i in zip(samples, indices, strict=False) if key not in s]
        if lacking:
            yield f"key {key!r} is missing in the samples at index {_listed(lacking)}."
            return
        yield from _misfits(f"{path}[{key!r}]", [s[key] for s in samples], indices)


def _sequence_misfits(
    path: str, named: str, samples: list[Any], indices: list[Any]
) -> Iterator[str]:
    length = len(samples[0])
    for sample, index in zip(samples, indices, strict=False):
        if len(sample) != length:
            yield (
                f"{named} has {length} elements at index {indices[0]} but {len(sample)} at "
                f"index {index}."
            )
            return
    fields = getattr(samples[0], "_fields", None)
    for position in range(length):
        step = f".{fields[position]}" if fields else f"[{position}]"
        yield from _misfits(path + step, [s[position] for s in samples], indices)


def _kind_of(value: Any) -> str:
    kind = type(value).__name__
    if not isinstance(value, torch.Tensor):
        return kind
    where = "" if value.is_cpu else f" on {value.device.type}"
    how = "" if value.layout is torch.strided else f" ({value.layout})"
    return kind + where + (" (nested)" if value.is_nested else how)


def _full_kind_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _kind_of(value)
    if isinstance(value, int):
        return f"{value}, more than 64 bits hold,"
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{kind} of {value.dtype}" if isinstance(value, np.ndarray) else kind


def _is_nested(value: Any) -> bool:
    return bool(getattr(value, "is_nested", False))


def _listed(indices: list[Any]) -> str:
    shown = ", ".join(str(i) for i in indices[:LONGEST_LIST])
    more = len(indices) - LONGEST_LIST
    return f"{shown} and {more} more" if more > 0 else shown
