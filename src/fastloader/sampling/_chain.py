"""Samplers within samplers, as far as they can be seen."""

from collections.abc import Iterator
from typing import Any

__all__ = ["samplers_within"]

_LINKS = ("batch_sampler", "sampler", "base_sampler")


def samplers_within(sampler: Any) -> Iterator[Any]:
    """Yield a sampler, then what it wraps, and so on inward.

    Args:
        sampler: Sampler or batch sampler; None yields nothing.
    """
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        seen.add(id(sampler))
        yield sampler
        sampler = _inner(sampler)


def _inner(sampler: Any) -> Any:
    for name in _LINKS:
        inner = getattr(sampler, name, None)
        if inner is not None:
            return inner
    # Lightning's and Catalyst's wrappers take a sampler for a dataset of indices.
    indices = getattr(sampler, "dataset", None)
    return getattr(indices, "_sampler", getattr(indices, "sampler", None))
