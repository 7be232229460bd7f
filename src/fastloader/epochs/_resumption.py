"""The state of a loader: saved from its position, checked, and turned into where to go on."""

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
)

from fastloader.engine import StreamPoint
from fastloader.epochs._position import EpochPosition, MapPosition, Origin, StreamPosition
from fastloader.epochs._state_fields import find_damage
from fastloader.errors import ResumeError
from fastloader.inspection._lengths import length_if_known
from fastloader.sampling._distributed import reseed_order, whole_order
from fastloader.sampling._epoch_order import (
    OrderPoint,
    OrderStart,
    order_decider,
    own_generators,
)
from fastloader.sampling._random_states import as_saved, capture_own, restore_own
from fastloader.sampling._shuffled import OrderedSampler
from fastloader.typing import Stateful

__all__ = ["Beginning", "begin", "check_state", "check_threads", "fresh_state", "save_position"]

logger = logging.getLogger("fastloader")

_VERSION = 1


class Beginning(NamedTuple):
    """Where a pass begins."""

    point: OrderPoint | None
    """Where in the order; None at its start."""
    points: Mapping[int, StreamPoint]
    """Where in the shares of an iterable dataset."""
    next_worker: int
    origin: Origin


_AT_START = Beginning(None, {}, 0, Origin())


def fresh_state(loader: Any, epoch: int) -> dict[str, Any]:
    """Return the state of a loader before an epoch."""
    decider = order_decider(loader.sampler, loader.batch_sampler)
    start = {"base_seed": None, "generators": _own(loader), "global_generators": None}
    state = {**_identity(loader), "epoch": epoch, "num_batches": 0, "start": start}
    if isinstance(loader.dataset, IterableDataset):
        return {**state, "workers": {}, "next_worker": 0}
    # A copy: samplers may give away what they go on to change.
    sampler_state = deepcopy(decider.state_dict()) if isinstance(decider, Stateful) else None
    return {**state, "sampler": sampler_state, "is_over": False, "done": [], "origin": [0, 0]}


def save_position(loader: Any, position: EpochPosition) -> dict[str, Any]:
    """Return the state of a loader in the middle of an epoch, or at its end."""
    if position.is_finished:
        state = fresh_state(loader, position.epoch + 1)
        if isinstance(position, MapPosition):
            return {**state, "sampler": position.sampler_state}
        return {**state, "workers": _save_points(position)}
    start = {
        "base_seed": position.start.base_seed,
        "generators": as_saved(position.start.own),
        "global_generators": as_saved(position.start.globals),
    }
    state = {
        **_identity(loader),
        "epoch": position.epoch,
        "num_batches": position.num_batches,
        "start": start,
    }
    if isinstance(position, StreamPosition):
        return {
            **state,
            "workers": _save_points(position),
            "next_worker": position.next_worker,
        }
    assert isinstance(position, MapPosition)  # noqa: S101 - there are two kinds
    return {
        **state,
        "sampler": position.sampler_state,
        "is_over": position.is_over or _is_cut_short(loader, position),
        "done": position.done,
        "origin": [position.origin.num_samples, position.origin.num_batches],
    }


def _is_cut_short(loader: Any, position: MapPosition) -> bool:
    """Return whether torch's batch sampler came to the end of a sampler with a state within the last batch.

    That state may be the one before the next epoch already.
    """
    if position.sampler_state is None or type(loader.batch_sampler) is not BatchSampler:
        return False
    last = position.last_indices()
    return last is not None and len(last) < loader.batch_sampler.batch_size


def check_state(loader: Any, state: Mapping[str, Any]) -> None:
    """Refuse a state that the loader cannot go on from.

    Args:
        loader: The loader.
        state: From `save_position`.

    Raises:
        ResumeError: If the state is not one, is damaged, or is of a loader with another dataset, batch
            sampler, seed or number of workers or ranks.
    """
    given: Any = state
    got = f"version={given.get('version')!r}" if isinstance(given, Mapping) else repr(given)
    if got != f"version={_VERSION!r}":
        raise ResumeError(
            f"This is no state of a FastLoader: expected a dictionary with version={_VERSION}, "
            f"as state_dict() returns it, but got {got}."
        )
    if (damage := find_damage(state)) is not None:
        raise ResumeError(f"The state is damaged: {damage}.")
    now = _identity(loader)
    if state["dataset_length"] != now["dataset_length"]:
        raise ResumeError(
            f"The state was saved with a dataset of length {state['dataset_length']}, and this "
            f"one has length {now['dataset_length']}: the order of samples is another one."
        )
    if state["seed"] != now["seed"]:
        raise ResumeError(
            f"The state was saved with seed={state['seed']}, but this loader has "
            f"seed={now['seed']}: give it the same one."
        )
    if "workers" in state:
        _check_workers(loader, state, now)
    else:
        _check_batches(loader, state, now)


def _check_workers(loader: Any, state: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if not isinstance(loader.dataset, IterableDataset):
        raise ResumeError(
            "The state was saved with an iterable dataset, but this one is map-style."
        )
    if state["batch_size"] != now["batch_size"] and state["num_batches"]:
        raise ResumeError(
            f"The state was saved with batch_size={state['batch_size']}, but this loader has "
            f"batch_size={now['batch_size']}: in the middle of an epoch of an iterable dataset "
            "it must stay the same."
        )
    if state["num_workers"] != now["num_workers"] and (
        state["num_batches"] or state["workers"]
    ):
        raise ResumeError(
            f"The state was saved with num_workers={state['num_workers']}, but this loader has "
            f"num_workers={now['num_workers']}: each worker reads its own share of an iterable "
            "dataset, so their number must stay the same. It may differ at the end of an "
            "epoch, if the dataset has no state_dict, and with a map-style dataset."
        )


def check_threads(loader: Any) -> None:
    """Refuse a dataset whose state would be that of several threads at once.

    Raises:
        ResumeError: If worker threads share an iterable dataset with a ``state_dict``.
    """
    shares = loader.workers == "threads" and loader.num_workers > 1
    dataset = loader.dataset
    if shares and isinstance(dataset, IterableDataset) and isinstance(dataset, Stateful):
        raise ResumeError(
            f"{loader.num_workers} threads read {type(dataset).__name__} at the same time, and "
            "its state_dict cannot tell where each of them is: take workers='processes' or "
            "num_workers=1, or give the iterator that it returns a state_dict."
        )


def _check_batches(loader: Any, state: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if isinstance(loader.dataset, IterableDataset):
        raise ResumeError(
            "The state was saved with a map-style dataset, but this one is iterable."
        )
    if (state["batch_size"] is None) != (now["batch_size"] is None):
        raise ResumeError(
            "The state was saved with a batch sampler of another kind (one of torch's or one "
            "of your own): make the loader with the same one."
        )
    if state["num_batches"] and state["is_sequential"] is not now["is_sequential"]:
        was, is_now = ("one from first to last", "another one")
        if now["is_sequential"]:
            was, is_now = is_now, was
        raise ResumeError(
            f"The state was saved in an order that was {was}, but the order of this loader is "
            f"{is_now}: in the middle of an epoch, shuffle and sampler must stay the same."
        )
    if not state["num_batches"]:
        return
    if _shape(state) == _shape(now):
        _check_length(state["order"], now["order"])
        return
    if state["done"] or state["sampler"] is not None:
        raise ResumeError(
            f"The state was saved with batch_size={state['batch_size']} on "
            f"{state['num_ranks']} ranks, but now these are {now['batch_size']} and "
            f"{now['num_ranks']}: that works only with in_order=True and a sampler without a "
            "state_dict."
        )
    if state["num_ranks"] != now["num_ranks"] and now["order"] is None:
        decider = order_decider(loader.sampler, loader.batch_sampler)
        raise ResumeError(
            f"The state was saved on {state['num_ranks']} ranks and now there are "
            f"{now['num_ranks']}: {type(decider).__name__} cannot share out what is left of "
            "the epoch anew. Use FastLoader(..., distributed=True, seed=...), or go on at the end "
            "of an epoch."
        )
    if _length(state["order"]) != _length(now["order"]):
        raise ResumeError(
            f"The state was saved with batch_size={state['batch_size']} on "
            f"{state['num_ranks']} ranks, but now these are {now['batch_size']} and "
            f"{now['num_ranks']}, and seed or length of the epoch's order have changed with them "
            f"(from {state['order']} to {now['order']}): give seed and samples_per_epoch, or go "
            "on at the end of an epoch."
        )


def _check_length(was: Any, is_now: Any) -> None:
    if was is not None and is_now is not None and _length(was) != _length(is_now):
        raise ResumeError(
            f"The state was saved in an epoch of {_length(was)} samples, but this loader has "
            f"{_length(is_now)} in one: in the middle of an epoch samples_per_epoch, "
            "batches_per_epoch and the length of the sampler must stay the same."
        )


def _length(order: Any) -> int | None:
    return None if order is None else order[1]


def begin(loader: Any, state: Mapping[str, Any] | None) -> Beginning:
    """Return where the next pass begins.

    Args:
        loader: The loader, whose own generators and the seeds of whose samplers are put back.
        state: One that was loaded and checked; None for the start of an epoch.
    """
    if state is None:
        return _AT_START
    saved = state["start"]
    decider = order_decider(loader.sampler, loader.batch_sampler)
    if state.get("order") is not None and not state["is_sequential"]:
        # Without a seed the order is that of the first state of a generator, in this process another one.
        reseed_order(decider, state["order"][0])
    start = None
    if saved["base_seed"] is not None:
        start = OrderStart(saved["base_seed"], saved["generators"], saved["global_generators"])
    else:
        restore_own(own_generators(decider, loader.generator), saved["generators"])
    if "workers" in state:
        point = OrderPoint(start, state["num_batches"], 0, frozenset(), None)
        points = _load_points(state)
        _warn_of_reading_again(loader.dataset, points)
        return Beginning(point, points, state["next_worker"], Origin())
    num_skipped, origin = _skip_in_order(loader, state)
    point = OrderPoint(
        start,
        state["num_batches"],
        num_skipped,
        frozenset(state["done"]),
        state["sampler"],
        state["is_over"],
    )
    return Beginning(point, {}, 0, origin)


def _skip_in_order(loader: Any, state: Mapping[str, Any]) -> tuple[int, Origin]:
    """Return what this rank leaves out of its order, and where its batches are counted from."""
    num_batches = state["num_batches"]
    if state["batch_size"] is None:
        return num_batches, Origin()
    origin = Origin(*state["origin"])
    since = num_batches - origin.num_batches
    now = _identity(loader)
    if _shape(state) != _shape(now):
        done = origin.num_samples + since * state["batch_size"] * state["num_ranks"]
        origin, since = Origin(done, num_batches), 0
    num_skipped = since * now["batch_size"]
    decider = order_decider(loader.sampler, loader.batch_sampler)
    if not origin.num_samples:
        return num_skipped, origin
    if callable(getattr(decider, "start_at", None)):
        decider.start_at(origin.num_samples)
        return num_skipped, origin
    return origin.num_samples // now["num_ranks"] + num_skipped, origin


def _warn_of_reading_again(dataset: Any, points: Mapping[int, StreamPoint]) -> None:
    num_samples = sum(point.num_samples for point in points.values() if point.is_read_again)
    if num_samples:
        logger.warning(
            "%s has no state_dict and load_state_dict, so to go on where the state was saved, "
            "the %d samples before are read again and thrown away.",
            type(dataset).__name__,
            num_samples,
        )


def _identity(loader: Any) -> dict[str, Any]:
    """Return what must be known of a loader to go on from its state."""
    dataset = loader.dataset
    is_iterable = isinstance(dataset, IterableDataset)
    decider = order_decider(loader.sampler, loader.batch_sampler)
    batch_size: int | None = 1
    if loader.batch_sampler is not None:
        is_torchs = type(loader.batch_sampler) is BatchSampler
        batch_size = loader.batch_sampler.batch_size if is_torchs else None
    return {
        "version": _VERSION,
        "seed": loader.seed,
        "dataset_length": None if is_iterable else length_if_known(dataset),
        "batch_size": batch_size,
        "order": None if is_iterable else whole_order(decider),
        "is_sequential": not is_iterable and _is_sequential(decider),
        "num_ranks": decider.num_replicas if isinstance(decider, DistributedSampler) else 1,
        "num_workers": loader.num_workers,
    }


def _is_sequential(decider: object) -> bool:
    if isinstance(decider, DistributedSampler):
        if not hasattr(decider, "sampler"):  # torch's own
            return not decider.shuffle
        decider = decider.sampler
    return type(decider) in {SequentialSampler, OrderedSampler}


def _shape(state: Mapping[str, Any]) -> tuple[Any, Any]:
    return state["batch_size"], state["num_ranks"]


def _own(loader: Any) -> dict[str, Any] | None:
    decider = order_decider(loader.sampler, loader.batch_sampler)
    return as_saved(capture_own(own_generators(decider, loader.generator)))


def _save_points(position: EpochPosition) -> dict[str, Any]:
    saved: dict[str, Any] = {}
    if not isinstance(position, StreamPosition):
        return saved
    for worker, point in position.points().items():
        if not position.is_finished:
            saved[str(worker)] = point._asdict()
        elif point.dataset is not None:
            # What the dataset knows at the end of an epoch counts in the next one.
            first = StreamPoint(worker - position.num_workers, 0, False, point.dataset)
            saved[str(worker)] = first._asdict()
    return saved


def _load_points(state: Mapping[str, Any]) -> dict[int, StreamPoint]:
    return {
        int(worker): StreamPoint(**point) for worker, point in state.get("workers", {}).items()
    }
