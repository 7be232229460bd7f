"""Keeps the workers of a loader alive between epochs, for one iterator at a time."""

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

from fastloader.engine import WorkerPool
from fastloader.inspection._seen_state import SeenState

__all__ = ["PoolKeeper"]

_STALE = (
    "The dataset has changed since the workers got their copies of it, and "
    "persistent_workers=True keeps these: the change is not seen. Leave persistent_workers out, "
    "then workers are started anew when the dataset changes, or give the dataset a live_state "
    "(see fastloader.typing.LiveDataset)."
)


class PoolKeeper:
    """Lends a pool of workers to iterators.

    An iterator that begins while another one uses the pool gets a pool of its own, so two
    live iterators over one loader are independent. Workers hold copies of the dataset: when it
    has changed since they started, the next iterator gets new ones.

    **Processes:** belongs to the loader; ends the idle pool with it. A child that is forked leaves
    the workers to its parent, and gets its own.
    """

    def __init__(self) -> None:
        self._idle: WorkerPool | None = None
        self._state: Any = None
        self._is_retired = False

    @cached_property
    def _seen(self) -> SeenState:
        """Of the dataset; made with the first workers."""
        return SeenState()

    @property
    def has_idle(self) -> bool:
        """Whether there are workers that wait for the next iterator."""
        return self._idle is not None and not self._idle.is_inherited

    def acquire(
        self, state: Any, dataset_state: Any, make: Callable[[], WorkerPool], *, insists: bool
    ) -> WorkerPool:
        """Return the idle pool, or a new one.

        Args:
            state: Of the options that workers were started with; another one than before means
                that the idle pool is of no use any more.
            dataset_state: The same for the dataset.
            make: Starts a new pool.
            insists: Whether the caller asked for workers that live on: then they keep their
                copies of a dataset that has changed, with a warning.
        """
        pool = self._take_idle()
        if pool is not None and state == self._state:
            if dataset_state == self._seen.fingerprint:
                return pool
            if insists:
                self._seen.fingerprint = dataset_state
                warnings.warn(_STALE, stacklevel=5)
                return pool
        if pool is not None:
            pool.close()
        self._state, self._seen.fingerprint = state, dataset_state
        return make()

    def release(self, pool: WorkerPool, *, keep: bool) -> None:
        """Take a pool back from an iterator.

        Args:
            pool: From `acquire`.
            keep: Whether its workers are to live on.
        """
        if keep and self._idle is None and not self._is_retired:
            self._idle = pool
        else:
            pool.close()

    def forget_next(self) -> None:
        """Cancel what the idle workers have begun of a pass that others begin instead."""
        if self._idle is not None:
            self._idle.cancel_head_start()

    def close(self) -> None:
        """End the idle workers; the next iterator starts new ones."""
        pool = self._take_idle()
        if pool is not None:
            pool.close()

    def _take_idle(self) -> WorkerPool | None:
        pool, self._idle = self._idle, None
        return None if pool is None or pool.is_inherited else pool

    def retire(self) -> None:
        """End the idle workers, and those in use as soon as they are given back."""
        self._is_retired = True
        self.close()
