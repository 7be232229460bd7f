"""Worker threads: each reads parts of batches, and who reads the last part makes the batch."""

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_collate

from fastloader._torch_internals import WatchedWorkerInfo, worker_info_of_thread
from fastloader.engine._collate import DefaultCollate, collate_map_into
from fastloader.engine._counters import RunCounters
from fastloader.engine._fetch import (
    AllSkippedError,
    Fetcher,
    FetchPlan,
    MapFetcher,
    SkippedSample,
    make_fetcher,
)
from fastloader.engine._stopwatch import Stopwatch
from fastloader.engine._stream_point import PackedPoint, StreamPoint
from fastloader.machine._freed_memory import keep_some_freed_memory
from fastloader.randomness._seeding import DrawScope, derive_seed, draw_scope
from fastloader.tensors._buffers import Allocator, allocating_with
from fastloader.threads._openmp import without_openmp
from fastloader.typing import Batch, Sample

__all__ = ["Failure", "Job", "ThreadSetup", "ThreadWorkers"]

PARTS_PER_WORKER = 2
CLOSE_SECONDS = 0.3


class Failure(NamedTuple):
    """An error of a job, and who met it."""

    error: BaseException
    worker: int


@dataclass
class Job:
    """One batch, from its indices to what became of it."""

    number: int
    indices: Any
    worker: int | None
    """Who must do it all, for an iterable dataset; else anybody does parts."""
    sampler_state: bytes | None = None
    """Of the sampler after it gave the batch, pickled, if it has any."""
    point: PackedPoint | None = None
    """Where the iterable dataset was after the batch."""
    parts: list[list[Sample]] = field(default_factory=list)
    skipped: list[list[SkippedSample]] = field(default_factory=list)
    """Samples left out, by part."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """By part."""
    num_open: int = 0
    """Parts that are not done."""
    batch: list[Batch] = field(default_factory=list)
    """The batch, if there is one."""
    is_end: bool = False
    """Whether the worker's share of an iterable dataset is at its end."""
    num_dropped: int = 0


class _Part(NamedTuple):
    job: Job
    position: int
    indices: Any


@dataclass(frozen=True)
class ThreadSetup:
    """What worker threads need to know."""

    plan: FetchPlan
    num_workers: int
    worker_init_fn: Callable[[int], None] | None
    rank: int
    scope: DrawScope
    allocate: Allocator
    stream_points: Mapping[int, StreamPoint]
    """Where the workers go on with an iterable dataset; empty at the beginning."""


class ThreadWorkers:
    """The worker threads of one pass over the data.

    **Threads:** start with the object and end with `close`. One that is busy then ends after
    the sample that it reads, which nothing can interrupt.

    Args:
        setup: What to read and how.
        on_done: Called in a worker's thread with each job that is done, and with None when a
            worker could not start.
        counters: Takes how long the workers were busy.
    """

    def __init__(
        self,
        setup: ThreadSetup,
        on_done: Callable[[Job | None], None],
        counters: RunCounters,
    ) -> None:
        self._setup = setup
        self._on_done = on_done
        self._counters = counters
        self._is_closed = False
        self._lock = threading.Lock()
        self._busy: dict[int, _Part] = {}
        self.unstarted: list[Failure] = []
        """Errors of workers that could not start."""
        self.is_repeated = False
        """Whether an iterable dataset gave samples without asking which worker it is in."""
        count = setup.num_workers
        self._shared: queue.SimpleQueue[_Part | None] = queue.SimpleQueue()
        self._own: list[queue.SimpleQueue[_Part | None]] = [
            queue.SimpleQueue() if setup.plan.is_iterable else self._shared
            for _ in range(count)
        ]
        keep_some_freed_memory()
        # Not named as our other threads: a fork may well freeze a lock that the dataset holds.
        self._threads = [
            threading.Thread(
                target=self._work, args=(number,), name=f"dataset-worker-{number}", daemon=True
            )
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def do(self, job: Job) -> None:
        """Let a job be done."""
        parts = self._divide(job)
        job.num_open = len(parts)
        job.parts = [[] for _ in parts]
        job.skipped = [[] for _ in parts]
        target = self._shared if job.worker is None else self._own[job.worker]
        for part in parts:
            target.put(part)

    def stacks(self) -> dict[int, tuple[Job, str]]:
        """Return what busy workers do: the job, and where in the code."""
        frames = sys._current_frames()  # noqa: SLF001 - documented
        found = {}
        for worker, part in tuple(self._busy.items()):
            frame = frames.get(self._threads[worker].ident or 0)
            found[worker] = (part.job, "".join(traceback.format_stack(frame)).rstrip())
        return found

    def close(self) -> None:
        """Cancel what is under way; harmless when repeated."""
        self._is_closed = True
        for own in self._own:
            own.put(None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _divide(self, job: Job) -> list[_Part]:
        plan = self._setup.plan
        if job.worker is not None or not _can_divide(plan):
            return [_Part(job, 0, job.indices)]
        indices = list(job.indices)
        step = -(-len(indices) // (PARTS_PER_WORKER * self._setup.num_workers)) or 1
        starts = range(0, len(indices), step) or [0]
        return [_Part(job, n, indices[start : start + step]) for n, start in enumerate(starts)]

    # In the threads

    def _work(self, worker: int) -> None:
        setup = self._setup
        info = WatchedWorkerInfo(
            id=worker,
            num_workers=setup.num_workers,
            seed=derive_seed(setup.scope.seed, setup.rank, worker) >> 1,
            dataset=setup.plan.dataset,
        )
        with (
            worker_info_of_thread(info),
            draw_scope(setup.scope),
            allocating_with(setup.allocate),
            without_openmp(),
        ):
            try:
                if setup.worker_init_fn is not None:
                    setup.worker_init_fn(worker)
                info.forget_asked()
                point = setup.stream_points.get(worker)
                fetcher = make_fetcher(setup.plan, self._collate(), point)
            except BaseException as error:  # noqa: BLE001 - raised in the consumer
                self.unstarted.append(Failure(error, worker))
                self._on_done(None)
                return
            watch = Stopwatch(is_for_thread=True)
            while (part := self._own[worker].get()) is not None and not self._is_closed:
                watch.lap()  # waiting for work is not work
                self._busy[worker] = part
                num_passed = 0
                if point is not None and point.is_read_again:
                    num_passed = len(range(worker, point.number + 1, setup.num_workers))
                    point = None
                is_last = self._do_part(part, fetcher, worker, num_passed)
                if setup.plan.is_iterable and not info.was_asked:
                    self.is_repeated = True
                self._counters.add_work(worker, *watch.lap())
                self._counters.made_batches[worker] += bool(is_last and part.job.batch)
                del self._busy[worker]
                if is_last:
                    self._on_done(part.job)

    def _collate(self) -> Callable[[Any], Any]:
        plan = self._setup.plan
        if plan.collate_fn is not default_collate:
            return plan.collate_fn
        return DefaultCollate(collate_map_into(self._allocate, is_crowded=True))

    def _allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        # A pool gives small batches to torch's own function, which takes shared memory where
        # there is a worker's info.
        return self._setup.allocate(shape, dtype)

    def _do_part(self, part: _Part, fetcher: Fetcher, worker: int, num_passed: int) -> bool:
        """Read a part, and make the batch if it is the last one; return whether it was."""
        job, position, indices = part
        is_divided = job.worker is None and _can_divide(self._setup.plan)
        try:
            for _ in range(num_passed):
                fetcher.pass_over(indices)
            if not is_divided:
                self._fetch_whole(job, indices, fetcher)
            elif not job.failures and isinstance(fetcher, MapFetcher):
                job.parts[position] = fetcher.read(indices)
        except AllSkippedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised in the consumer
            job.failures[position] = Failure(error, worker)
        job.skipped[position], fetcher.skipped = fetcher.skipped, []
        with self._lock:
            job.num_open -= 1
            is_last = job.num_open == 0
        if is_last and is_divided and not job.failures and isinstance(fetcher, MapFetcher):
            self._finish(job, fetcher, worker)
        return is_last

    @staticmethod
    def _fetch_whole(job: Job, indices: Any, fetcher: Fetcher) -> None:
        try:
            job.batch = [fetcher.fetch(indices)]
        except StopIteration:
            job.is_end = True
            job.num_dropped, fetcher.num_dropped = fetcher.num_dropped, 0
        job.point = fetcher.stream_point(job.number)

    @staticmethod
    def _finish(job: Job, fetcher: MapFetcher, worker: int) -> None:
        samples = list(chain.from_iterable(job.parts))
        job.parts.clear()
        try:
            with suppress(AllSkippedError):
                job.batch = [fetcher.finish(samples, job.indices)]
        except BaseException as error:  # noqa: BLE001 - raised in the consumer
            job.failures[0] = Failure(error, worker)


def _can_divide(plan: FetchPlan) -> bool:
    if plan.is_iterable or plan.batched is not None or not plan.auto_collation:
        return False
    return plan.on_error == "skip" or not hasattr(plan.dataset, "__getitems__")
