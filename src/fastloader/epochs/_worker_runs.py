"""Runs over the workers of one loader, processes or threads, and what lives on between them."""

import logging
import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fastloader.engine import (
    BatchMaker,
    Deliveries,
    FetchPlan,
    PoolOptions,
    PoolRun,
    RunCounters,
    RunOptions,
    SkippedSample,
    ThreadOptions,
    ThreadRun,
    ThreadSetup,
    WorkerPool,
)
from fastloader.epochs._epochs import BegunEpoch
from fastloader.epochs._forecast import Forecaster
from fastloader.epochs._keeper import PoolKeeper
from fastloader.epochs._plan import leaves_nothing
from fastloader.errors import UnpicklableError
from fastloader.inspection._attributes import walk_attributes
from fastloader.inspection._fingerprint import fingerprint
from fastloader.inspection._live import knows, read_live_state
from fastloader.machine._file_limit import note_file_limit
from fastloader.machine._machine import may_fork_safely
from fastloader.machine._ranks import read_ranks
from fastloader.randomness._seeding import DrawScope
from fastloader.sampling._drawn import Drawn
from fastloader.settings._choice import Choice
from fastloader.stages import MOST_UNDER_WAY, lock_pages
from fastloader.tensors._buffers import Allocator

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = [
    "PassWorkers",
    "WorkerRuns",
    "open_thread_run",
]

logger = logging.getLogger("fastloader")

SPARE_PREFETCH_FACTOR = 2
"""Of workers that the loader's options say nothing of."""


class _ProcessRun(NamedTuple):
    """A pass over worker processes."""

    run: PoolRun
    pool: WorkerPool
    on_end: Callable[[bool], None]
    """To be called at its end, with whether it ended in good health."""


class PassWorkers:
    """The workers of one pass, there when they are asked for.

    Args:
        open_run: Opens a run over what is left of an order.
        keeper: Has the workers between passes.
    """

    def __init__(
        self, open_run: Callable[[Iterator[Drawn]], _ProcessRun], keeper: PoolKeeper
    ) -> None:
        self._open_run = open_run
        self._keeper = keeper
        self._opened: list[_ProcessRun] = []
        self.processes: list[BaseProcess] = []
        """Those that there were when they started."""

    def start(self, order: Iterator[Drawn]) -> PoolRun:
        """Return a run that has begun.

        Args:
            order: What is left to be read of the epoch.
        """
        found = self._open_run(order)
        self._opened.append(found)
        self.processes.extend(found.pool.processes)
        return found.run

    def end(self, is_healthy: bool) -> None:
        """Give the workers back, if there are any.

        Args:
            is_healthy: Whether they can be used again.
        """
        while self._opened:
            self._opened.pop().on_end(is_healthy)

    def retire(self) -> None:
        """End the workers, as they are of no use."""
        self.end(is_healthy=True)
        self._keeper.close()
        self.processes.clear()


class WorkerRuns:
    """Opens passes over the worker processes of one loader.

    **Processes:** belongs to the loader, whose copies make their own.

    Args:
        choice: What the loader runs with.
        skipped: Takes the samples that are left out.
    """

    def __init__(self, choice: Choice, skipped: list[SkippedSample]) -> None:
        self._choice = choice
        self._skipped = skipped
        self.keeper = PoolKeeper()
        """Keeps the workers that live on."""
        self._sends_batches = True  # until workers cannot send some, which are made here
        self._num_needed = 1

    @cached_property
    def _forecaster(self) -> Forecaster:
        return Forecaster()

    def may_do_without(self, loader: Any, device: torch.device | None) -> bool:
        """Return whether nobody insists on workers.

        Args:
            loader: The loader, for its options as they are now.
            device: Where batches are copied to, if anywhere.
        """
        return (
            self._is_automatic(loader)
            and self._choice.is_persistence_automatic
            and loader.worker_init_fn is None
            and device is None
            and not loader.pin_memory
        )

    def can_make_batches(self, loader: Any) -> bool:
        """Return whether workers can make batches at all, or fail where somebody insists on them.

        Processes that may not start others are daemonic: a loader that has got its number of workers
        elsewhere may have come to such a one, as a part of a dataset for instance.

        Args:
            loader: The loader, for its options as they are now.
        """
        may_start = not multiprocessing.current_process().daemon
        return self._sends_batches and (may_start or not self._is_automatic(loader))

    def may_start(self, loader: Any) -> bool:
        """Return whether workers that nobody has asked for do no harm now.

        Args:
            loader: The loader, for its options as they are now.
        """
        return loader.num_workers > 0 or self.keeper.has_idle or may_fork_safely()

    def most_workers(self, loader: Any, plan: FetchPlan) -> int:
        """Return how many workers there may be.

        Args:
            loader: The loader, for its options as they are now.
            plan: What to read and how.
        """
        if loader.num_workers == 0:
            return self._choice.spare_workers
        if self._may_grow(loader, plan):
            return self._choice.most_workers
        return int(loader.num_workers)

    def open(
        self,
        loader: Any,
        plan: FetchPlan,
        maker: BatchMaker,
        begun: BegunEpoch,
        deliveries: Deliveries,
        device: torch.device | None,
        counters: RunCounters,
        order: Iterator[Drawn],
    ) -> _ProcessRun:
        """Begin a pass over workers.

        Args:
            loader: The loader, for its options as they are now.
            plan: What to read and how.
            maker: Makes batches here, where the number of workers is automatic and their batches
                cannot be sent.
            begun: The epoch.
            deliveries: Takes what became of the batches.
            device: Where they are copied to, if anywhere.
            counters: Takes what happens.
            order: What is left to be read of the epoch.
        """
        loader.check_worker_number_rationality()
        dataset_state = fingerprint(plan.dataset)
        pool_options = self._pool_options(loader, plan, begun, device)
        pool = self.keeper.acquire(
            _state_of(loader, plan, device),
            dataset_state,
            partial(self._start_pool, plan, pool_options),
            insists=not self._choice.is_persistence_automatic,
        )
        run = PoolRun(
            pool,
            order,
            RunOptions(
                epoch=begun.epoch,
                base_seed=begun.order.start.base_seed,
                in_order=loader.in_order,
                prefetch_factor=loader.prefetch_factor or SPARE_PREFETCH_FACTOR,
                may_deepen=self._choice.is_prefetch_automatic,
                is_iterable=plan.is_iterable,
                drop_last=loader.drop_last,
                timeout_seconds=loader.timeout,
                stall_seconds=loader.watchdog_seconds,
                restarts_workers=loader.on_worker_death == "restart",
                budget_bytes=self._choice.budget_bytes,
                num_held=MOST_UNDER_WAY + 2 if device is not None else 2,
                live_state=partial(read_live_state, plan.dataset),
                dataset_epoch=begun.epoch if knows(plan.dataset, "set_epoch") else None,
                stream_points=begun.stream_points,
                next_worker=begun.next_worker,
                deliveries=deliveries,
                skipped=self._skipped,
                forecast=partial(
                    self._forecaster.forecast, loader, plan, begun.epoch + 1, dataset_state
                ),
                may_grow=lambda: fingerprint(plan.dataset) == dataset_state,
                counters=counters,
                maker=maker if self._is_automatic(loader) else None,
            ),
        )
        return _ProcessRun(run, pool, partial(self._end, loader, pool, run))

    def _start_pool(self, plan: FetchPlan, options: PoolOptions) -> WorkerPool:
        are_alike = options.worker_init_fn is None and leaves_nothing(plan)
        options = replace(options, are_alike=are_alike)
        try:
            return WorkerPool(plan, options)
        except OSError as error:
            note_file_limit(error)
            raise
        except UnpicklableError as error:
            if not self._choice.may_fork or options.forks:
                raise
            if _has_threads(plan.dataset):
                error.add_note(
                    "Workers are not forked, as the dataset has threads, which forked workers "
                    "would lack."
                )
                raise
            warnings.warn(
                "Workers are forked, though other threads are alive, whose locks a fork may "
                "freeze: workers that start afresh cannot get the dataset. If no batch comes, "
                f"this is why. {error}",
                stacklevel=6,
            )
            return WorkerPool(
                plan, replace(options, context=multiprocessing.get_context("fork"))
            )

    def _pool_options(
        self, loader: Any, plan: FetchPlan, begun: BegunEpoch, device: torch.device | None
    ) -> PoolOptions:
        may_grow = self._may_grow(loader, plan)
        context = multiprocessing.get_context(None if loader.num_workers else "fork")
        return PoolOptions(
            context=loader.multiprocessing_context or context,
            num_workers=self.most_workers(loader, plan),
            worker_init_fn=loader.worker_init_fn,
            ranks=read_ranks(),
            base_seed=begun.order.start.base_seed,
            pin=lock_pages if device is not None and device.type == "cuda" else None,
            stands_for_fork=self._choice.may_fork,
            num_first=self._num_needed if may_grow else None,
            num_cpus=loader.num_workers or self._choice.spare_workers,
        )

    def _may_grow(self, loader: Any, plan: FetchPlan) -> bool:
        # Not where each worker has a share of an iterable dataset, nor where the caller insists on
        # the copies of the dataset that the first workers got: later ones would get another.
        return (
            self._is_automatic(loader)
            and self._choice.is_persistence_automatic
            and not plan.is_iterable
        )

    def _is_automatic(self, loader: Any) -> bool:
        """Return whether the number of workers is ours, and nobody has set another since."""
        return bool(loader.num_workers == self._choice.automatic_workers)

    def _end(self, loader: Any, pool: WorkerPool, run: PoolRun, is_healthy: bool) -> None:
        self._num_needed = pool.num_live
        if run.counters.num_made_here and self._sends_batches:
            self._sends_batches = False
            text = (
                "The batches cannot be sent from workers to the main process (tensors that need "
                "gradients, or a class defined inside a function, say), so from now on they are "
                "made there, without workers."
            )
            loader.stats.note_fallback(text)
            logger.warning(text)
        lives_on = loader.persistent_workers or self._choice.spare_workers > 0
        keeps = lives_on and is_healthy and self._sends_batches
        self.keeper.release(pool, keep=keeps)


def _has_threads(dataset: object) -> bool:
    """Tell whether a dataset has threads of its own, which a forked worker would wait for."""
    return any(
        isinstance(value, threading.Thread) for _, value, _ in walk_attributes(dataset, "")
    )


def _state_of(loader: Any, plan: FetchPlan, device: torch.device | None) -> Any:
    """Return the options that workers are started with, for comparison."""
    parts = (
        fingerprint(plan.collate_fn),
        fingerprint(plan.batch_transform),
        fingerprint(loader.worker_init_fn),
    )
    return parts, loader.num_workers, loader.on_error, loader.drop_last, device


def open_thread_run(
    loader: Any,
    plan: FetchPlan,
    allocate: Allocator,
    begun: BegunEpoch,
    deliveries: Deliveries,
    skipped: list[SkippedSample],
) -> ThreadRun:
    """Return a pass over worker threads that has begun.

    Args:
        loader: The loader, for its options as they are now.
        plan: What to read and how.
        allocate: Makes the tensors of the batches.
        begun: The epoch.
        deliveries: Takes what became of the batches.
        skipped: Takes the samples that are left out.
    """
    setup = ThreadSetup(
        plan,
        loader.num_workers,
        loader.worker_init_fn,
        read_ranks().rank,
        DrawScope(begun.order.start.base_seed, begun.epoch),
        allocate,
        begun.stream_points,
    )
    options = ThreadOptions(
        loader.in_order,
        loader.prefetch_factor,
        loader.timeout,
        loader.watchdog_seconds,
        skipped,
        begun.next_worker,
        deliveries,
    )
    return ThreadRun(setup, begun.order.batches, options)
