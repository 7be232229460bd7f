"""Tells samplers and dataset which epoch begins, and hears it from them if somebody set it."""

import weakref
from contextlib import suppress
from functools import partial
from typing import Any

from torch.utils.data import DistributedSampler, RandomSampler, Sampler, SequentialSampler

from fastloader.inspection._kept_epoch import attribute_of_epoch
from fastloader.inspection._live import knows, tell
from fastloader.inspection._seen_state import tell_quietly
from fastloader.sampling._epoch_order import order_decider
from fastloader.sampling._epoch_sampler import has_chunks

__all__ = ["EpochTeller"]

_DEPTH = 5
_DEAF = {RandomSampler, SequentialSampler}
"""Samplers that know of no epochs and have none within, as most loaders' have none."""
_NAMES = ("epoch", "_epoch", "current_epoch", "_current_epoch", "cur_epoch", "_cur_epoch")


class _Told(int):
    """The number of an epoch that a loader has told a sampler, which may get the same again.

    torch's samplers keep what they are told: another object of the same value is what somebody
    else has told them since. Copies are plain numbers.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


_told: dict[int, int] = {}
"""What any loader told an object last, by its id. Loaders may share datasets: what one told is not
what somebody has set for the other."""


class EpochTeller:
    """Calls ``set_epoch`` of all that have it, once for each pass over a loader.

    Frameworks and users call ``set_epoch`` of samplers and datasets too. Where one keeps the
    number, as ``epoch``, by a name like it or where the code of ``set_epoch`` shows it, and it is another than it was last told, somebody
    has, and the loader and all the others go by that. Who calls ``set_epoch`` of a `DistributedSampler` with the same number
    again wants the same epoch again, as with a stock loader.

    **Processes:** the main one. Copies of the dataset in workers are told with their tasks.
    """

    def __init__(self) -> None:
        self._dataset_epoch: int | None = None

    @staticmethod
    def targets(loader: Any) -> list[Any]:
        """Return all that have a ``set_epoch``: dataset and samplers of a loader."""
        found = []
        sampler = order_decider(loader.sampler, loader.batch_sampler)
        for _ in range(_DEPTH):  # frameworks put samplers of their own around others
            if sampler is None or type(sampler) in _DEAF:
                break
            found.append(sampler)
            sampler = getattr(sampler, "batch_sampler", None) or getattr(
                sampler, "sampler", None
            )
        return [target for target in (*found, loader.dataset) if knows(target, "set_epoch")]

    @staticmethod
    def epoch_set_by_hand(targets: list[Any]) -> int | None:
        """Return the epoch that somebody else has set, or None."""
        return _set_by_hand(targets)

    @staticmethod
    def is_overtaken(targets: list[Any], *, order_is_ended: bool) -> bool:
        """Return whether somebody has set another epoch than the one that was told last.

        Args:
            targets: From `targets`.
            order_is_ended: Whether the order has been drawn to its end: some samplers set the next epoch
                there themselves.
        """
        by_hand = _set_by_hand(targets)
        if by_hand is None or (order_is_ended and _has_counted_on(targets, by_hand)):
            return False
        for target in targets:
            if by_hand == _told.get(id(target), 0):
                _remember(target, by_hand)  # the same: it is the one under way that is meant
        return _set_by_hand(targets) is not None

    def tell(self, targets: list[Any], dataset: Any, epoch: int) -> None:
        """Tell all which epoch it is.

        Args:
            targets: Of the loader.
            dataset: The loader's, which may be one of them.
            epoch: The number.
        """
        for target in targets:
            if _epoch_of(target) != epoch:
                _tell(target, epoch, is_dataset=target is dataset)
            _remember(target, epoch)
        self._dataset_epoch = epoch

    def remind(self, dataset: Any, epoch: int) -> None:
        """Tell a dataset again which epoch its next batch is of, if it was told another since.

        Two passes at once in this process read the same dataset in turn.

        Args:
            dataset: The loader's.
            epoch: Of the pass that reads it next.
        """
        if self._dataset_epoch != epoch:
            _tell(dataset, epoch, is_dataset=True)
            _remember(dataset, epoch)
            self._dataset_epoch = epoch


def _set_by_hand(targets: list[Any]) -> int | None:
    """Return the epoch of the first target that has another one than it was told, or None."""
    for target in targets:
        epoch, told = _epoch_of(target), _told.get(id(target), 0)
        if epoch is not None and (
            epoch != told or (isinstance(told, _Told) and epoch is not told)
        ):
            return int(epoch)
    return None


def _has_counted_on(targets: list[Any], epoch: int) -> bool:
    """Return whether an epoch may be what a sampler has set by itself at the end of the one before."""
    return any(
        isinstance(target, Sampler)
        and not isinstance(target, DistributedSampler)
        and not has_chunks(target)
        and _epoch_of(target) == epoch
        and _told.get(id(target), 0) == epoch - 1
        for target in targets
    )


def _epoch_of(target: Any) -> int | None:
    """Return the number of the epoch that an object keeps, if it can be seen."""
    numbers = (
        getattr(target, name, None)
        for name in (*_NAMES, attribute_of_epoch(type(target)))
        if name
    )
    return next((n for n in numbers if isinstance(n, int) and n >= 0), None)


def _tell(target: Any, epoch: int, *, is_dataset: bool) -> None:
    set_epoch = partial(tell, target, "set_epoch", epoch)
    if is_dataset and knows(target, "set_epoch"):
        tell_quietly(target, set_epoch)  # copies in workers are told, too
    else:
        set_epoch()


def _remember(target: Any, epoch: int) -> None:
    if id(target) not in _told:
        with suppress(TypeError):  # it cannot be watched, nor does it matter
            weakref.finalize(target, _told.pop, id(target), None).atexit = False
    own = getattr(target, "__dict__", {})
    if isinstance(target, DistributedSampler) and own.get("epoch") == epoch:
        own["epoch"] = epoch = _Told(epoch)
    _told[id(target)] = epoch
