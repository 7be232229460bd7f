"""Says which field of which sample made default collate fail, or lose something."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastloader.typing import Sample

__all__ = ["find_misfits", "warn_of_lost_keys"]

LONGEST_LIST = 5


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


def warn_of_lost_keys(samples: Sequence[Sample], indices: Sequence[Any]) -> None:
    """Warn if default collate would drop keys that the first sample does not have.

    Args:
        samples: About to be collated.
        indices: Index of each sample in the dataset.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        size = len(first)
        if set(map(type, samples)) == {dict}:
            is_uneven = set(map(len, samples)) != {size}
        else:
            mappings = (sample for sample in samples if isinstance(sample, Mapping))
            is_uneven = any(len(sample) != size for sample in mappings)
        if is_uneven:
            _warn_of_keys(samples, indices)
    elif isinstance(first, list | tuple):
        for position, part in enumerate(first):
            if isinstance(part, Mapping | list | tuple):
                parts = [s[position] for s in samples if len(s) > position]
                if len(parts) == len(samples):
                    warn_of_lost_keys(parts, indices)


def _warn_of_keys(samples: Sequence[Any], indices: Sequence[Any]) -> None:
    first = samples[0]
    for sample, index in zip(samples, indices, strict=False):
        lost = [key for key in sample if key not in first]
        if lost:
            warnings.warn(
                f"Sample {index} has the keys {lost} that sample {indices[0]}, the first of the "
                "batch, has not: default collate drops them. Give every sample the same keys, "
                "or write a collate_fn.",
                stacklevel=2,
            )
            return


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
        odd = next(
            i for s, i in zip(samples, indices, strict=False) if _kind_of(s) != _kind_of(first)
        )
        yield (
            f"{named} is {_kind_of(first)} at index {indices[0]} but another type at index "
            f"{odd}: {', '.join(sorted(kinds))}."
        )
    elif isinstance(first, torch.Tensor | np.ndarray):
        yield from _shape_misfits(named, samples, indices)
    elif isinstance(first, Mapping):
        yield from _mapping_misfits(path, samples, indices)
    elif isinstance(first, list | tuple):
        yield from _sequence_misfits(path, named, samples, indices)


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
    return type(value).__name__


def _listed(indices: list[Any]) -> str:
    shown = ", ".join(str(i) for i in indices[:LONGEST_LIST])
    more = len(indices) - LONGEST_LIST
    return f"{shown} and {more} more" if more > 0 else shown
