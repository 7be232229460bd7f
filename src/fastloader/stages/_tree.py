"""A function applied to the tensors of a batch, whatever it is made of: for one, to move them to a device."""

import copy
import dataclasses
from array import array
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

from fastloader.typing import Batch

__all__ = ["map_tensors", "move_tensors"]

_PLAIN = (str, bytes, bytearray, memoryview, array, range, int, float, type(None))
"""What holds no tensors, though most of it is a sequence."""


def map_tensors(
    batch: Batch,
    function: Callable[[torch.Tensor], torch.Tensor],
    method: Callable[[Any], Any] | None = None,
) -> Batch:
    """Return a batch of the same structure with a function applied to each tensor.

    Mappings, sequences, named tuples and dataclasses keep their type; anything else passes
    through.

    Args:
        batch: Any nesting.
        function: Applied to each tensor.
        method: Applied first to each object that is no container; what it returns other than
            `NotImplemented` stands in its place.
    """
    if isinstance(batch, torch.Tensor):
        return function(batch)
    # What most batches are is told by one look: to ask of each which protocols it has takes longer.
    kind = type(batch)
    if kind is list or kind is tuple:
        return kind([map_tensors(part, function, method) for part in batch])
    if kind is dict:
        return {key: map_tensors(part, function, method) for key, part in batch.items()}
    return _map_other(batch, function, method)


def move_tensors(
    batch: Batch,
    device: torch.device,
    *,
    non_blocking: bool = True,
    note: Callable[[Any], object] = lambda _part: None,
) -> Batch:
    """Return a batch on a device: its tensors, and what has a method ``to``.

    Args:
        batch: Any nesting.
        device: Where to; copies are queued on its current stream.
        non_blocking: Whether the host goes on at once, where memory is locked.
        note: Called with each object that has moved by its own method.
    """

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, non_blocking=non_blocking)

    def move_by_itself(part: Any) -> Any:
        own = getattr(part, "to", None)
        if not callable(own):
            return NotImplemented
        try:
            moved = own(device, non_blocking=non_blocking)
        except TypeError:
            moved = own(device)
        note(part)
        return moved

    return map_tensors(batch, move, move_by_itself)


def _map_other(
    batch: Any,
    function: Callable[[torch.Tensor], torch.Tensor],
    method: Callable[[Any], Any] | None,
) -> Any:
    if isinstance(batch, _PLAIN):
        return batch
    if method is not None and (moved := method(batch)) is not NotImplemented:
        return moved
    for is_kind, map_kind in _CONTAINERS:
        if is_kind(batch):
            return map_kind(batch, lambda part: map_tensors(part, function, method))
    return batch


def _map_mapping(batch: Mapping[Any, Any], again: Callable[[Any], Any]) -> Any:
    mapped = {key: again(part) for key, part in batch.items()}
    try:
        if isinstance(batch, MutableMapping):
            # May carry more than its items: a copy keeps that, a new one would not.
            clone = copy.copy(batch)
            for (
                key,
                part,
            ) in mapped.items():  # not by `update`, which adds to what a Counter has
                clone[key] = part
            return clone
        return type(batch)(mapped)  # type: ignore[call-arg]
    except TypeError:
        return mapped


def _map_sequence(batch: Sequence[Any], again: Callable[[Any], Any]) -> Any:
    mapped = [again(part) for part in batch]
    try:
        if isinstance(batch, MutableSequence):
            clone = copy.copy(batch)
            for position, part in enumerate(mapped):
                clone[position] = part
            return clone
        return type(batch)(mapped)  # type: ignore[call-arg]
    except TypeError:
        return mapped


def _map_dataclass(batch: Any, again: Callable[[Any], Any]) -> Any:
    clone = copy.copy(batch)
    for field in dataclasses.fields(batch):
        if not hasattr(batch, field.name):
            continue  # one that nobody has set
        # Past __setattr__, for frozen ones.
        object.__setattr__(clone, field.name, again(getattr(batch, field.name)))
    return clone


def _map_named_tuple(batch: Any, again: Callable[[Any], Any]) -> Any:
    return type(batch)(*(again(part) for part in batch))


_CONTAINERS: tuple[
    tuple[Callable[[Any], bool], Callable[[Any, Callable[[Any], Any]], Any]], ...
] = (
    (lambda batch: isinstance(batch, Mapping), _map_mapping),
    (lambda batch: isinstance(batch, tuple) and hasattr(batch, "_fields"), _map_named_tuple),
    (lambda batch: isinstance(batch, Sequence), _map_sequence),
    (dataclasses.is_dataclass, _map_dataclass),
)
