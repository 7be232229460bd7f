"""From a loader to the stream of one epoch: an engine, then stages."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import torch

from fastloader._torch_internals import index_sampler
from fastloader.datasets._batched import has_independent_rows
from fastloader.datasets._held import (
    copied_tensors,
    copies_rows,
    is_held,
    read_held_state,
)
from fastloader.datasets._resident import preferred_residence
from fastloader.engine import (
    AheadRun,
    BatchMaker,
    InProcessRun,
    Place,
    PlacedRun,
    Placement,
    PoolRun,
    Run,
    RunCounters,
    SkippedSample,
    StreamPoint,
    StreamRun,
    unpack_point,
)
from fastloader.epochs._direct_reading import DirectReading
from fastloader.epochs._epochs import BegunEpoch
from fastloader.epochs._forecast import foreteller
from fastloader.epochs._iterator import LoaderIterator
from fastloader.epochs._opening import Opening, deliveries_for
from fastloader.epochs._plan import leaves_nothing, may_be_read_anew, plan_of
from fastloader.epochs._position import EpochPosition
from fastloader.epochs._residence import Residence
from fastloader.epochs._staging import allocator, device_of, made_here, staged
from fastloader.epochs._worker_runs import (
    PassWorkers,
    WorkerRuns,
    open_thread_run,
)
from fastloader.inspection._fingerprint import fingerprint
from fastloader.inspection._lengths import length_if_known
from fastloader.randomness._isolation import DrawingHabits
from fastloader.randomness._seeding import DrawScope
from fastloader.sampling._drawn import Drawn
from fastloader.sampling._foretelling import may_be_drawn_early
from fastloader.sampling._permutations import PermutationsAhead
from fastloader.settings._choice import Choice
from fastloader.stages import BatchStream, CopySeconds, HostStream
from fastloader.tensors._buffers import BufferPool
from fastloader.tensors._huge_pages import HugePages
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.threads._standby import Standby, StandbyKeeper
from fastloader.typing import BatchedDataset

__all__ = ["EpochOpener"]


class EpochOpener:
    """Opens epochs of one loader, and keeps what lives on between them.

    **Processes:** belongs to the loader, whose copies make their own.

    Args:
        choice: What the loader runs with.
        skipped: Takes the samples that are left out.
    """

    def __init__(self, choice: Choice, skipped: list[SkippedSample]) -> None:
        self._choice = choice
        self._skipped = skipped
        self._worker_runs = WorkerRuns(choice, skipped)
        self.keeper = self._worker_runs.keeper
        """Keeps the workers that live on."""
        self.permutations = PermutationsAhead()
        """Of the coming epoch, drawn by a thread that stands by."""
        self._ends_with_loader = False
        self._buffers = BufferPool()
        self._habits = DrawingHabits()

    # Made when they are needed, as most loaders need none.

    @cached_property
    def residence(self) -> Residence:
        """Of the data on a device."""
        return Residence()

    @cached_property
    def _placement(self) -> Placement:
        return Placement(self._choice.machine.rank_cpus)

    @cached_property
    def _direct(self) -> DirectReading:
        return DirectReading()

    @cached_property
    def _huge_pages(self) -> HugePages:
        return HugePages()

    @cached_property
    def _standby(self) -> StandbyKeeper:
        return StandbyKeeper()

    def open(self, loader: Any, begun: BegunEpoch, began: float) -> LoaderIterator:
        """Return the iterator of an epoch.

        Args:
            loader: The loader, for its options as they are now.
            begun: The epoch.
            began: When it was asked for, by `time.perf_counter`.
        """
        device, deliveries = device_of(loader), deliveries_for(loader)
        epoch = Opening(loader, begun, began, device, plan_of(loader), deliveries)
        begun.order.batches.keeps_arrays = epoch.plan.batched is not None
        seconds = loader.stats.copy_seconds_of_pass()
        if loader.resident is not None or preferred_residence(loader.dataset) is not None:
            if (stream := self._open_resident(epoch)) is not None:
                return epoch.iterator(stream)
            loader.stats.note_fallback(f"not resident: {self.residence.obstacle}")
        elif device is not None and seconds is None and self._direct.is_kept(device):
            if (stream := self._open_resident(epoch, is_asked=False)) is not None:
                return epoch.iterator(stream)
            self._direct.keep_nothing()
        if loader.num_workers > 0 and loader.workers == "threads":
            return self._open_threads(epoch, seconds)
        if loader.num_workers == 0 or not self._worker_runs.can_make_batches(loader):
            return self._open_here(epoch, seconds)
        return self._open_processes(epoch, seconds)

    def _open_resident(self, epoch: Opening, *, is_asked: bool = True) -> BatchStream | None:
        """Return batches that are gathered on the device, or None if the data cannot be there.

        Args:
            epoch: The pass.
            is_asked: Whether the caller has asked for it, and so is told why not.
        """
        # Its thread draws the coming orders, which may wait for the gathering of another pass.
        loader, standby = epoch.loader, self._lend_standby(epoch.loader, is_idle=True)
        standby.give_back()
        order = epoch.begun.order
        scope = DrawScope(order.start.base_seed, epoch.begun.epoch)
        return self.residence.open(
            epoch.plan,
            epoch.device,
            order.batches,
            scope,
            epoch.deliveries,
            is_asked=is_asked,
            foretell=foreteller(loader, epoch.begun.epoch + 1),
            executor=standby.executor,
        )

    def _open_threads(self, epoch: Opening, seconds: CopySeconds | None) -> LoaderIterator:
        loader = epoch.loader
        allocate = allocator(loader, epoch.device, self._buffers)
        run = open_thread_run(
            loader, epoch.plan, allocate, epoch.begun, epoch.deliveries, self._skipped
        )
        stream = staged(run, loader, epoch.device, seconds)
        return epoch.iterator(stream, counters=run.counters, copy_seconds=seconds)

    def _open_here(self, epoch: Opening, seconds: CopySeconds | None) -> LoaderIterator:
        """Return an epoch whose batches are made in this process."""
        loader, device, plan = epoch.loader, epoch.device, epoch.plan
        standby = None
        if plan.batched is not None and device is not None:
            standby = self._lend_standby(loader, is_idle=False)
        batched = plan.batched
        if batched is not None and has_independent_rows(batched):
            epoch.begun.order.batches.makes_lists = False
        if batched is not None:
            self._huge_pages.begin_pass(partial(copied_tensors, batched))
        if batched is not None and self._may_be_placed(epoch) and is_held(batched):
            return self._open_held(epoch, batched, seconds)
        # Asked where it matters, since it takes some time to tell.
        is_inert = not self._habits.is_quiet and leaves_nothing(plan)
        if standby is None:
            maker = self._helped_maker(epoch, is_inert=is_inert)
        else:
            maker = self._maker(epoch, standby, is_inert=is_inert)
        order = epoch.begun.order.batches
        stream = made_here(
            loader, plan, maker, order, epoch.deliveries, device, standby, self._direct, seconds
        )
        for obstacle in self._direct.obstacles:
            loader.stats.note_fallback(f"gathered by threads: {obstacle}")
        return epoch.iterator(stream, copy_seconds=seconds)

    def _may_be_placed(self, epoch: Opening) -> bool:
        """Return whether batches that are made here may be made ahead where that is quicker."""
        loader, plan = epoch.loader, epoch.plan
        return (
            self._choice.may_be_placed
            and epoch.device is None
            and loader.num_workers == self._choice.automatic_workers
            and self._worker_runs.can_make_batches(loader)
            and plan.calls_only_dataset
            and plan.on_error == "raise"
            and may_be_drawn_early(loader.sampler, loader.batch_sampler)
        )

    def _open_held(
        self, epoch: Opening, batched: BatchedDataset, seconds: CopySeconds | None
    ) -> LoaderIterator:
        """Return an epoch of a dataset whose batches are made wherever that is the quickest."""
        loader, deliveries = epoch.loader, epoch.deliveries

        def make_ahead(order: Iterator[Drawn]) -> Run:
            self._end_with(loader)
            standby = self._standby.lend()
            maker = self._maker(epoch, standby, is_inert=False)
            budget_bytes = self._choice.budget_bytes
            return AheadRun(maker, order, deliveries, standby, budget_bytes=budget_bytes)

        has_enough_threads = torch.get_num_threads() >= self._choice.machine.rank_cpus
        return self._placed(
            epoch,
            self._helped_maker(epoch, is_inert=False),
            {Place.AHEAD: make_ahead},
            seconds,
            count_left=lambda: None,
            gains_by_workers=not (has_enough_threads and copies_rows(batched)),
            read_state=partial(read_held_state, batched),
        )

    def _open_processes(self, epoch: Opening, seconds: CopySeconds | None) -> LoaderIterator:
        """Return an epoch whose batches are made by worker processes, or here if that is quicker."""
        loader, plan = epoch.loader, epoch.plan
        may_do_without = self._worker_runs.may_do_without(loader, epoch.device)
        may_begin = may_do_without and plan.is_iterable and self._may_begin_here(epoch)
        if may_begin and may_be_read_anew(plan):
            return self._open_stream(epoch, seconds)
        is_inert = may_do_without and leaves_nothing(plan)
        maker = self._maker(epoch, None, is_inert=is_inert)
        if is_inert:
            count_left = partial(self._count_left, loader, epoch.begun.position)
            return self._placed(epoch, maker, {}, seconds, count_left=count_left)
        workers, counters = self._workers_of(epoch, maker)
        run = self._start(epoch, workers, epoch.begun.order.batches)
        return self._read_by(epoch, workers, counters, run, seconds)

    def _count_left(self, loader: Any, position: EpochPosition) -> int | None:
        """Return how many batches are left of a pass, if that is known and workers are not there anyway."""
        length = None if self.keeper.has_idle else length_if_known(index_sampler(loader))
        return None if length is None else length - position.num_batches

    def _may_begin_here(self, epoch: Opening) -> bool:
        """Return whether a stream may be begun here, as nobody has its place in it."""
        is_whole = epoch.loader.num_workers == 1 and not epoch.begun.stream_points
        return is_whole and not self.keeper.has_idle

    def _open_stream(self, epoch: Opening, seconds: CopySeconds | None) -> LoaderIterator:
        """Return an epoch of an iterable dataset that is read here, or by a worker if that is quicker."""
        dataset = epoch.plan.dataset
        points: dict[int, StreamPoint] = {}
        later = epoch._replace(begun=epoch.begun._replace(stream_points=points))
        maker = self._maker(epoch, None, is_inert=True)
        workers, counters = self._workers_of(later, maker)
        state = fingerprint(dataset)

        def hand_on(number: int, order: Iterator[Drawn]) -> PoolRun | None:
            if fingerprint(dataset) != state:
                return None  # a worker would not read what was read here
            if (packed := maker.stream_point(number)) is not None:
                points[0] = unpack_point(packed)
            return self._start(later, workers, order)

        here = InProcessRun(maker, epoch.begun.order.batches, epoch.deliveries)
        run = StreamRun(here, hand_on)
        return self._read_by(epoch, workers, counters, run, seconds)

    def _placed(
        self,
        epoch: Opening,
        maker: BatchMaker,
        others: Mapping[Place, Callable[[Iterator[Drawn]], Run]],
        seconds: CopySeconds | None,
        *,
        count_left: Callable[[], int | None],
        gains_by_workers: bool = True,
        read_state: Callable[[], object] | None = None,
    ) -> LoaderIterator:
        """Return an epoch whose batches are made here, in other places or by workers."""
        if self._placement.needs_no_workers:
            self.keeper.close()
        elif self._placement.place is not Place.WORKERS:
            self.keeper.forget_next()
        workers, counters = self._workers_of(epoch, maker)
        num_workers = epoch.loader.num_workers or self._choice.spare_workers
        makers = {
            Place.HERE: lambda order: InProcessRun(maker, order, epoch.deliveries),
            **others,
        }
        may_do_without = self._worker_runs.may_do_without(epoch.loader, epoch.device)
        if num_workers > 0 and gains_by_workers and may_do_without:
            makers[Place.WORKERS] = partial(self._start, epoch, workers)
        run = PlacedRun(
            self._placement,
            epoch.begun.order.batches,
            count_left=count_left,
            makers=makers,
            num_workers=num_workers,
            may_start_workers=partial(self._worker_runs.may_start, epoch.loader),
            end_workers=workers.retire,
            read_state=read_state,
        )
        return self._read_by(epoch, workers, counters, run, seconds)

    def _workers_of(self, epoch: Opening, maker: BatchMaker) -> tuple[PassWorkers, RunCounters]:
        """Return the workers of an epoch, who are not there yet, and what takes note of them."""
        counters = RunCounters()
        open_run = partial(
            self._worker_runs.open,
            epoch.loader,
            epoch.plan,
            maker,
            epoch.begun,
            epoch.deliveries,
            epoch.device,
            counters,
        )
        return PassWorkers(open_run, self.keeper), counters

    def _start(self, epoch: Opening, workers: PassWorkers, order: Iterator[Drawn]) -> PoolRun:
        self._end_with(epoch.loader)
        return workers.start(order)

    @staticmethod
    def _read_by(
        epoch: Opening,
        workers: PassWorkers,
        counters: RunCounters,
        run: HostStream,
        seconds: CopySeconds | None,
    ) -> LoaderIterator:
        return epoch.iterator(
            staged(run, epoch.loader, epoch.device, seconds),
            processes=workers.processes,
            on_end=workers.end,
            counters=counters,
            copy_seconds=seconds,
        )

    def _helped_maker(self, epoch: Opening, *, is_inert: bool) -> BatchMaker:
        """Return what makes batches in this process, with threads that help it until it is closed."""
        if torch.get_num_threads() == 1:
            return self._maker(epoch, None, is_inert=is_inert)
        self._end_with(epoch.loader)
        standby = self._standby.lend(is_ahead=False)
        return self._maker(epoch, standby, is_inert=is_inert, on_close=standby.give_back)

    def _maker(
        self,
        epoch: Opening,
        standby: Standby | None,
        *,
        is_inert: bool,
        on_close: Callable[[], None] | None = None,
    ) -> BatchMaker:
        """Return what makes batches in this process."""
        begun = epoch.begun
        return BatchMaker(
            epoch.plan,
            allocator(epoch.loader, epoch.device, self._buffers),
            read_scope=lambda: DrawScope(begun.order.start.base_seed, begun.epoch),
            skipped=self._skipped,
            habits=self._habits,
            crew=None if standby is None else standby.crew,
            on_close=on_close,
            point=begun.stream_points.get(0),
            remind=begun.remind,
            is_inert=is_inert,
        )

    def _lend_standby(self, loader: Any, *, is_idle: bool) -> Standby:
        """Return threads for a pass, of which one draws the coming order as well.

        Args:
            loader: The loader.
            is_idle: Whether nothing else is done there: then the orders of four are drawn in a row.
        """
        self._end_with(loader)
        standby = self._standby.lend()
        self.permutations.executor = standby.executor
        self.permutations.num_passes = 4 if is_idle else 1
        return standby

    def _end_with(self, loader: Any) -> None:
        """Let threads and workers that live on end with the loader; for passes that may leave some."""
        if not self._ends_with_loader:
            self._ends_with_loader = True
            for end in (self.keeper.retire, self._standby.close):
                weakref.finalize(loader, held_interrupts.left_alone()(end)).atexit = False
