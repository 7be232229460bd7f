"""What the state of a loader consists of, and what of one is damaged."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fastloader.engine import StreamPoint

__all__ = ["find_damage"]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int)


def _are_counts(value: object) -> bool:
    return isinstance(value, Sequence) and all(map(_is_count, value))


def _are_two_counts(value: Any) -> bool:
    return _are_counts(value) and len(value) == 2


def _is_start(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and {"base_seed", "generators", "global_generators"} <= value.keys()
        and (value["base_seed"] is None or _is_number(value["base_seed"]))
        and isinstance(value["generators"], Mapping | None)
        and isinstance(value["global_generators"], Mapping | None)
    )


def _are_points(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        str(worker).removeprefix("-").isdecimal()
        and isinstance(point, Mapping)
        and point.keys() == set(StreamPoint._fields)
        and _is_count(point["num_samples"])
        and _is_number(point["number"])
        for worker, point in value.items()
    )


class _Kind(NamedTuple):
    words: str
    is_met_by: Callable[[Any], bool]


_Fields: TypeAlias = Mapping[str, _Kind]

_COUNT = _Kind("a whole number from 0 on", _is_count)
_FLAG = _Kind("True or False", lambda value: isinstance(value, bool))
_TWO_COUNTS = _Kind("two whole numbers from 0 on", _are_two_counts)
_ANYTHING = _Kind("there", lambda _: True)


def _or_none(kind: _Kind) -> _Kind:
    return _Kind(f"{kind.words} or None", lambda value: value is None or kind.is_met_by(value))


_OF_ALL: _Fields = {
    "epoch": _COUNT,
    "num_batches": _COUNT,
    "seed": _or_none(_Kind("a whole number", _is_number)),
    "dataset_length": _or_none(_COUNT),
    "batch_size": _or_none(_Kind("a whole number from 1 on", _is_size)),
    "num_ranks": _Kind("a whole number from 1 on", _is_size),
    "num_workers": _COUNT,
    "is_sequential": _FLAG,
    "start": _Kind("a dictionary of seeds and of states of generators", _is_start),
}

_OF_MAPS: _Fields = {
    "order": _or_none(_TWO_COUNTS),
    "sampler": _ANYTHING,
    "is_over": _FLAG,
    "done": _Kind("a list of numbers of batches", _are_counts),
    "origin": _TWO_COUNTS,
}

_OF_STREAMS: _Fields = {
    "workers": _Kind("a dictionary of a place in the data for each worker", _are_points),
    "next_worker": _COUNT,
}

_MISSING = object()


def find_damage(state: Mapping[str, Any]) -> str | None:
    """Return what of a state is not as `save_position` leaves it, in words; None if all is.

    States of generators, samplers and datasets are theirs to look at.

    Args:
        state: That somebody wants to go on from.
    """
    fields = {**_OF_ALL, **(_OF_STREAMS if "workers" in state else _OF_MAPS)}
    for name, kind in fields.items():
        value = state.get(name, _MISSING)
        if value is _MISSING:
            return f"{name} is missing"
        if not kind.is_met_by(value):
            return f"{name} should be {kind.words}, but is {value!r}"
    return None
