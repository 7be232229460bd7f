"""Streams whose batches nobody makes before they are asked for."""

from typing import Protocol, TypeVar

__all__ = ["OnDemand"]

Made_co = TypeVar("Made_co", covariant=True)


class _GivesNext(Protocol[Made_co]):
    def __next__(self) -> Made_co: ...


class OnDemand:
    """A stream that makes each batch when it is asked for: the next one is always ready."""

    @property
    def is_on_demand(self) -> bool:
        """Whether batches are made by the call that asks for them."""
        return True

    def next_if_ready(self: _GivesNext[Made_co]) -> list[Made_co]:
        """Return the next batch in a list, or an empty list at the end."""
        try:
            return [next(self)]
        except StopIteration:
            return []
