"""Whether, and with what, workers may begin the next epoch while the last batches are taken."""

from functools import partial
from typing import Any

import numpy as np

from fastloader.engine import FetchPlan, Forecast
from fastloader.inspection._attributes import walk_attributes
from fastloader.inspection._live import knows
from fastloader.pickling._pickling import must_be_inherited
from fastloader.sampling._foretelling import Foretell, foretell_epoch, may_be_foretold

__all__ = ["Forecaster", "foreteller"]

_SHARED_MODULES = frozenset({"multiprocessing.managers", "multiprocessing.shared_memory"})


class Forecaster:
    """Forecasts the epochs of one loader, from the second time on that one comes to its end."""

    def __init__(self) -> None:
        self._num_ends = 0
        self._judged: Any = None
        self._is_apart = False

    def forecast(
        self, loader: Any, plan: FetchPlan, epoch: int, dataset_state: Any
    ) -> Forecast | None:
        """Return what the next epoch will be, if nobody changes anything until it begins.

        Args:
            loader: The loader.
            plan: What workers were started with.
            epoch: Number of the next epoch.
            dataset_state: Fingerprint of the dataset.

        Returns:
            None where the order cannot be known, or where samples may come out otherwise when
            they are read later: a dataset that wants to be told of the epoch first, or one that
            shares memory with this process.
        """
        self._num_ends += 1
        ends_workers = loader.num_workers > 0 and not loader.persistent_workers
        if self._num_ends == 1 or plan.is_iterable or ends_workers:
            return None
        if self._judged != dataset_state:
            self._judged, self._is_apart = dataset_state, _is_apart(plan)
        if not self._is_apart:
            return None
        foretell = foreteller(loader, epoch)
        foretold = None if foretell is None else foretell()
        return None if foretold is None else Forecast(epoch, *foretold)


def foreteller(loader: Any, epoch: int) -> Foretell | None:
    """Return what foretells an epoch of a loader, without keeping the loader; None if that cannot be known.

    Args:
        loader: For its options as they are now.
        epoch: Number of the epoch.
    """
    if not may_be_foretold(loader.sampler, loader.batch_sampler):
        return None
    return partial(
        foretell_epoch,
        loader.sampler,
        loader.batch_sampler,
        generator=loader.generator,
        seed=loader.seed,
        epoch=epoch,
    )


def _is_apart(plan: FetchPlan) -> bool:
    """Return whether nothing reaches the workers' copies of the dataset unnoticed."""
    parts = (plan.dataset, plan.collate_fn, plan.batch_transform)
    return not knows(plan.dataset, "set_epoch") and not any(
        _is_shared(value) for _, value, _ in walk_attributes(parts, "")
    )


def _is_shared(value: object) -> bool:
    if isinstance(value, np.ndarray):
        while isinstance(value, np.ndarray):
            value = value.base
        # A view of memory that is not NumPy's own, such as that of a `multiprocessing.Array`.
        return isinstance(value, memoryview)
    return must_be_inherited(value) or type(value).__module__ in _SHARED_MODULES
