"""What may change in a dataset while workers hold copies of it, wherever it is wrapped."""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["is_training", "knows", "load_live_state", "read_live_state", "tell"]

_NAME_OF_NOTHING = "no_dataset_has_this"


def read_live_state(dataset: Any) -> Any:
    """Return the live state of a dataset, or of those that it is made of.

    torch's `Subset`, `ConcatDataset` and their like have no live state of their own, but what
    they hold may.

    Returns:
        What `LiveDataset.live_state` returns; a tuple of these; None where there is none.
    """
    read = _method_of(dataset, "live_state")
    if read is not None:
        return read()
    states = tuple(read_live_state(inner) for inner in _inner_datasets(dataset))
    return states if any(state is not None for state in states) else None


def load_live_state(dataset: Any, state: Any) -> None:
    """Give a state that `read_live_state` returned for another copy to the same places.

    Args:
        dataset: A dataset made as that one was.
        state: The state.
    """
    if state is None:
        return
    load = _method_of(dataset, "load_live_state")
    if load is not None:
        load(state)
        return
    for inner, inner_state in zip(_inner_datasets(dataset), state, strict=True):
        load_live_state(inner, inner_state)


def knows(dataset: Any, method: str) -> bool:
    """Return whether `tell` would call anything."""
    if _method_of(dataset, method) is not None:
        return True
    inner = _inner_datasets(dataset)
    return bool(inner) and any(knows(one, method) for one in inner)


def is_training(dataset: Any) -> bool:
    """Return whether a dataset, or one that it is made of, is in training mode."""
    if getattr(dataset, "training", None) is True:
        return True
    return any(map(is_training, _inner_datasets(dataset)))


def tell(dataset: Any, method: str, value: Any) -> None:
    """Call a method of a dataset, or if it has none, that of those that it is made of.

    Args:
        dataset: Any dataset.
        method: Name of a method with one argument.
        value: The argument.
    """
    call = _method_of(dataset, method)
    if call is not None:
        call(value)
        return
    for inner in _inner_datasets(dataset):
        tell(inner, method, value)


def _method_of(dataset: Any, name: str) -> Callable[..., Any] | None:
    method = getattr(dataset, name, None)
    if not callable(method):
        return None
    # Stand-ins (as of `unittest.mock`) have a method of any name, which means nothing.
    return None if hasattr(dataset, _NAME_OF_NOTHING) else method


def _inner_datasets(dataset: Any) -> list[Any]:
    attributes = getattr(dataset, "__dict__", {})
    if "dataset" in attributes:  # Subset
        return [attributes["dataset"]]
    several = attributes.get("datasets")  # ConcatDataset, ChainDataset; of StackDataset a dict
    if several is None:
        return []  # before an abstract class is asked for, which takes longer
    if isinstance(several, Mapping):
        return list(several.values())
    return list(several) if isinstance(several, list | tuple) else []
