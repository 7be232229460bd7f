"""From a loader to the stream of one epoch: an engine, then stages."""

import logging
import multiprocessing
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from fastloader._buffers import Allocator, BufferPool
from fastloader._crew import Crew
from fastloader._epochs import BegunEpoch
from fastloader._fingerprint import fingerprint
from fastloader._forecast import Forecaster
from fastloader._isolation import DrawingHabits
from fastloader._iterator import LoaderIterator
from fastloader._keeper import PoolKeeper
from fastloader._live import read_live_state
from fastloader._ranks import read_ranks
from fastloader._residence import Residence
from fastloader._seeding import DrawScope
from fastloader._torch_internals import index_sampler, reported_length
from fastloader.datasets._batched import as_batched, has_independent_rows
from fastloader.datasets._resident import preferred_residence
from fastloader.engine import (
    BatchMaker,
    Deliveries,
    FetchPlan,
    InProcessRun,
    MergedRun,
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
from fastloader.sampling._drawn import DrawnBatches
from fastloader.stages import (
    MOST_UNDER_WAY,
    BatchStream,
    CutStream,
    PinnedStream,
    copied_ahead,
    copied_to,
    lock_pages,
)
from fastloader.stats import count_samples
from fastloader.typing import Batch

__all__ = ["EpochOpener", "LoaderFacts"]

logger = logging.getLogger("fastloader")

GATHERED_AHEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """What is settled when a loader is made and stands in none of its options."""

    chose_workers: bool
    """Whether their number is automatic."""
    chose_persistence: bool
    """Whether it is automatic that workers live on."""
    budget_bytes: int
    """Bound of the memory that batches ahead of the consumer may take."""
    skipped: list[SkippedSample] = field(default_factory=list)
    """Takes the samples that are left out, in all epochs."""


class EpochOpener:
    """Opens epochs of one loader, and keeps what lives on between them.

    **Processes:** belongs to the loader, whose copies make their own.

    Args:
        loader: The loader.
        facts: What its options do not say.
    """

    def __init__(self, loader: Any, facts: LoaderFacts) -> None:
        self._facts = facts
        self._keeper = PoolKeeper()
        weakref.finalize(loader, self._keeper.retire).atexit = False
        self._buffers = BufferPool()
        self._habits = DrawingHabits()
        self._sends_batches = True
        self._num_needed = 1
        self._forecaster = Forecaster()
        self.residence = Residence()

    def open(self, loader: Any, begun: BegunEpoch, began: float) -> LoaderIterator:
        """Return the iterator of an epoch.

        Args:
            loader: The loader, for its options as they are now.
            begun: The epoch.
            began: When it was asked for, by `time.perf_counter`.
        """
        device = _device_of(loader)
        plan = _plan_of(loader)
        scope = DrawScope(begun.order.start.base_seed, begun.epoch)
        deliveries: Deliveries = deque()
        if loader.resident is not None or preferred_residence(loader.dataset) is not None:
            order = begun.order.batches
            stream = self.residence.open(plan, device, order, scope, deliveries)
            if stream is not None:
                return _iterator(loader, begun, deliveries, stream, began)
            loader.stats.note_fallback(f"not resident: {self.residence.obstacle}")
        allocate = _allocator(loader, device, self._buffers)
        maker = BatchMaker(
            plan,
            allocate,
            scope=scope,
            rank=read_ranks().rank,
            skipped=self._facts.skipped,
            habits=self._habits,
            crew=Crew(torch.get_num_threads() - 1),
            point=begun.stream_points.get(0),
            remind=begun.remind,
        )
        if loader.num_workers > 0 and loader.workers == "threads":
            threads = self._start_threads(loader, plan, allocate, begun, deliveries)
            return _iterator(
                loader,
                begun,
                deliveries,
                _staged(threads, loader, device),
                began,
                counters=threads.counters,
            )
        if loader.num_workers == 0 or not self._sends_batches:
            stream = _made_here(loader, plan, maker, begun.order.batches, deliveries, device)
            return _iterator(loader, begun, deliveries, stream, began)
        run, processes, on_end = self._start_workers(
            loader, plan, maker, begun, deliveries, device
        )
        stream = _staged(run, loader, device)
        return _iterator(
            loader,
            begun,
            deliveries,
            stream,
            began,
            processes=processes,
            on_end=on_end,
            counters=run.counters,
        )

    def _start_workers(
        self,
        loader: Any,
        plan: FetchPlan,
        maker: BatchMaker,
        begun: BegunEpoch,
        deliveries: Deliveries,
        device: torch.device | None,
    ) -> tuple[PoolRun, list[Any], Callable[[bool], None]]:
        loader.check_worker_number_rationality()
        base_seed = begun.order.start.base_seed
        options = PoolOptions(
            context=loader.multiprocessing_context or multiprocessing.get_context(),
            num_workers=loader.num_workers,
            worker_init_fn=loader.worker_init_fn,
            ranks=read_ranks(),
            base_seed=base_seed,
            pin=lock_pages if device is not None and device.type == "cuda" else None,
            num_first=self._num_needed if self._may_grow(plan) else None,
        )
        if begun.change is not None:
            self._keeper.note_change(*begun.change)
        dataset_state = fingerprint(plan.dataset)
        pool = self._keeper.acquire(
            _state_of(loader, plan, device),
            dataset_state,
            lambda: WorkerPool(plan, options),
            insists=not self._facts.chose_persistence,
        )
        run = PoolRun(
            pool,
            begun.order.batches,
            RunOptions(
                epoch=begun.epoch,
                base_seed=base_seed,
                in_order=loader.in_order,
                prefetch_factor=loader.prefetch_factor,
                is_iterable=plan.is_iterable,
                drop_last=loader.drop_last,
                timeout_seconds=loader.timeout,
                stall_seconds=loader.watchdog_seconds,
                restarts_workers=loader.on_worker_death == "restart",
                budget_bytes=self._facts.budget_bytes,
                num_held=MOST_UNDER_WAY + 2 if device is not None else 2,
                live_state=partial(read_live_state, plan.dataset),
                dataset_epoch=None if begun.change is None else begun.epoch,
                stream_points=begun.stream_points,
                next_worker=begun.next_worker,
                deliveries=deliveries,
                skipped=self._facts.skipped,
                forecast=partial(
                    self._forecaster.forecast, loader, plan, begun.epoch + 1, dataset_state
                ),
                may_grow=lambda: fingerprint(plan.dataset) == dataset_state,
                maker=maker if self._facts.chose_workers else None,
            ),
        )

        def on_end(is_healthy: bool) -> None:
            self._num_needed = pool.num_live
            if run.counters.num_made_here and self._sends_batches:
                self._sends_batches = False
                text = (
                    "The batches cannot be sent from workers to the main process (a class "
                    "defined inside a function or class, say), so from now on they are made "
                    "there, without workers."
                )
                loader.stats.note_fallback(text)
                logger.warning(text)
            keeps = loader.persistent_workers and is_healthy and self._sends_batches
            self._keeper.release(pool, keep=keeps)

        return run, pool.processes, on_end

    def _may_grow(self, plan: FetchPlan) -> bool:
        """Return whether there need not be all workers from the start.

        Not where each has a share of an iterable dataset, nor where the caller insists on the
        copies of the dataset that the first workers got: later ones would get another.
        """
        facts = self._facts
        return facts.chose_workers and facts.chose_persistence and not plan.is_iterable

    def _start_threads(
        self,
        loader: Any,
        plan: FetchPlan,
        allocate: Allocator,
        begun: BegunEpoch,
        deliveries: Deliveries,
    ) -> ThreadRun:
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
            self._facts.skipped,
            begun.next_worker,
            deliveries,
        )
        return ThreadRun(setup, begun.order.batches, options)


def _iterator(
    loader: Any,
    begun: BegunEpoch,
    deliveries: Deliveries,
    stream: BatchStream,
    began: float,
    *,
    processes: Sequence[BaseProcess] = (),
    on_end: Callable[[bool], None] | None = None,
    counters: RunCounters | None = None,
) -> LoaderIterator:
    return LoaderIterator(
        stream,
        dataset=loader.dataset,
        index_sampler=index_sampler(loader),
        reported_length=reported_length(loader),
        processes=list(processes),
        transform=loader.device_transform,
        on_end=on_end or (lambda _is_healthy: None),  # nothing else outlives an epoch
        deliveries=deliveries,
        position=begun.position,
        order=begun.order.batches,
        tally=loader.stats.begin_pass(
            began,
            num_warm_up=loader.num_workers * (loader.prefetch_factor or 1),
            counters=counters,
            queue=stream.queue,
        ),
        count=_sample_counter(loader),
        renew=partial(_renewed, loader),
    )


def _renewed(loader: Any, close: Callable[[], None]) -> LoaderIterator | None:
    if not loader._epochs.is_overtaken(loader):  # noqa: SLF001
        return None
    close()  # first, so that the next pass gets the same workers
    renewed: LoaderIterator = loader._get_iterator()  # noqa: SLF001
    return renewed


def _sample_counter(loader: Any) -> Callable[[Any, Batch], int]:
    if loader.batch_sampler is None:
        return lambda _indices, _batch: 1
    if isinstance(loader.dataset, IterableDataset):
        return lambda indices, batch: count_samples(batch, len(indices))
    return lambda indices, _batch: len(indices)


def _plan_of(loader: Any) -> FetchPlan:
    has_batches = loader.batch_sampler is not None
    default = has_batches and loader.collate_fn is default_collate
    return FetchPlan(
        dataset=loader.dataset,
        is_iterable=isinstance(loader.dataset, IterableDataset),
        auto_collation=has_batches,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last,
        batched=as_batched(loader.dataset) if default else None,
        on_error=loader.on_error,
        batch_transform=loader.batch_transform,
    )


def _state_of(loader: Any, plan: FetchPlan, device: torch.device | None) -> Any:
    """Return the options that workers are started with, for comparison."""
    parts = (
        fingerprint(plan.collate_fn),
        fingerprint(plan.batch_transform),
        fingerprint(loader.worker_init_fn),
    )
    return parts, loader.num_workers, loader.on_error, loader.drop_last, device


def _device_of(loader: Any) -> torch.device | None:
    if loader.device is None:
        return None
    device = torch.device(loader.device)
    if device.type == "cpu":
        return None
    if device.index is None:
        module = torch.get_device_module(device)  # type: ignore[unreachable]  # wrong in torch's stubs
        return torch.device(device.type, module.current_device())
    return device


def _allocator(loader: Any, device: torch.device | None, buffers: BufferPool) -> Allocator:
    wants_pinned = loader.pin_memory or (device is not None and device.type == "cuda")
    if wants_pinned and torch.cuda.is_available():
        return _pinned_empty
    return buffers


def _pinned_empty(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    # Torch's cache of page-locked blocks: it keeps each until copies from it are over.
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def _made_here(
    loader: Any,
    plan: FetchPlan,
    maker: BatchMaker,
    order: DrawnBatches,
    deliveries: Deliveries,
    device: torch.device | None,
) -> BatchStream:
    """Return the stream of an epoch without workers."""
    if plan.batched is None or device is None:
        return _staged(InProcessRun(maker, order, deliveries), loader, device)
    merges = (
        plan.on_error == "raise"
        and plan.batch_transform is None
        and has_independent_rows(plan.batched)
    )
    if not merges:
        run = InProcessRun(maker, order, deliveries)
        return copied_ahead(run, device, GATHERED_AHEAD)
    merged = MergedRun(maker, order, deliveries)
    return CutStream(copied_ahead(merged, device, GATHERED_AHEAD))


def _staged(stream: BatchStream, loader: Any, device: torch.device | None) -> BatchStream:
    if device is not None:
        return copied_to(stream, device)
    if loader.pin_memory and torch.accelerator.is_available():
        return PinnedStream(stream)
    return stream
