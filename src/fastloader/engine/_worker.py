"""A worker process: takes tasks from a pipe and puts batches into slots."""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import random
import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch.utils.data import default_collate

from fastloader._torch_internals import (
    WatchedWorkerInfo,
    default_collate_fn_map,
    set_worker_info,
)
from fastloader.engine._batch_memory import BatchMemory
from fastloader.engine._collate import DefaultCollate, install_collate_into
from fastloader.engine._fetch import AllSkippedError, Fetcher, FetchPlan, make_fetcher
from fastloader.engine._frames import FrameReader, send_frame
from fastloader.engine._launch import Launch
from fastloader.engine._messages import (
    Leave,
    LiveState,
    Reply,
    ReplyKind,
    Resume,
    SlotOffer,
    Task,
    decode_order,
    encode_reply,
)
from fastloader.engine._one_thread import use_one_thread
from fastloader.engine._owned_generators import OwnedGenerators
from fastloader.engine._packing import can_be_packed, pack
from fastloader.engine._remote_errors import pack_error
from fastloader.engine._stopwatch import Stopwatch
from fastloader.engine._stream_point import as_bytes
from fastloader.errors import SharedMemoryError, UnpicklableError
from fastloader.inspection._live import load_live_state, tell
from fastloader.machine._file_limit import note_file_limit
from fastloader.machine._freed_memory import keep_all_freed_memory
from fastloader.machine._process_end import end_with_writer, open_sentinel
from fastloader.machine._ranks import Ranks, adopt_ranks
from fastloader.pickling._unpicklable import find_unpicklable
from fastloader.randomness._seeding import (
    DrawScope,
    derive_seed,
    draw_scope,
    seed_global_generators,
)
from fastloader.shm._arena import ArenaView, SlotPlace
from fastloader.shm._memory_file import MemoryFile
from fastloader.tensors._buffers import allocating_with, empty_batch
from fastloader.typing import Batch

__all__ = ["RUN_BYTES", "WorkerSetup", "run_worker"]

RUN_BYTES = 8  # at the start of the arena's control page: number of the earliest run in force


@dataclass(frozen=True)
class WorkerSetup:
    """What one worker is told at its start."""

    worker_id: int
    num_workers: int
    ranks: Ranks
    base_seed: int
    tasks: Connection
    """To read from."""
    replies: Connection
    """To write to."""
    lifeline: Connection
    """To end with: the consumer holds its other end, and writes nothing to it."""
    arena: MemoryFile
    stacks: MemoryFile
    """Where the worker writes its stack when it is asked with a signal."""
    foreign_descriptors: AbstractSet[int]
    """The consumer's ends of all pipes, which a forked worker inherits and must not hold."""
    libraries: ThreadpoolController | None
    """The numerical libraries that a forked worker inherits; None for others."""
    generators: OwnedGenerators | None
    """Those of the dataset that a forked worker inherits; None for others."""
    ignored_signals: tuple[int, ...]
    """Those that the consumer handles itself."""


def run_worker(setup: WorkerSetup, launch: Launch) -> None:
    """Work until told to leave, or until the consumer is gone.

    **Processes:** the main function of each worker process.
    """
    # What exists now lives as long as the worker: no need to look at it, nor to copy its pages.
    gc.freeze()
    for descriptor in setup.foreign_descriptors:
        os.close(descriptor)
    _prepare_process(setup)
    adopt_ranks(setup.ranks)
    send = _Sender(setup.replies.fileno())
    try:
        worker = _start_worker(setup, launch, send)
        if worker is not None:
            gc.freeze()  # the copy of the dataset, too
            worker.work(FrameReader(setup.tasks.fileno(), _orphan_check()))
    except BrokenPipeError:
        pass  # the consumer is gone
    finally:
        setup.replies.close()  # tells the consumer that this worker leaves by itself


def _start_worker(setup: WorkerSetup, launch: Launch, send: "_Sender") -> "_Worker | None":
    """Return the worker, or None where it cannot start; the consumer is told of either.

    Raises:
        SystemExit: If the dataset or worker_init_fn raises it: it ends the worker.
    """
    try:
        plan, worker_init_fn = launch.load()
        worker = _Worker(setup, plan, send)
        worker.initialise(worker_init_fn)
    except SystemExit:
        raise  # ends the worker, as it asks for
    except BaseException as error:  # noqa: BLE001 - raised in the consumer
        send(Reply(ReplyKind.NOT_STARTED, -1, -1, 0, pack_error(error)))
        return None
    send(Reply(ReplyKind.READY, -1, -1, 0, b""))
    return worker


def _prepare_process(setup: WorkerSetup) -> None:
    end_with_writer(setup.lifeline.fileno())
    # Ctrl-C reaches the whole group: the consumer decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in setup.ignored_signals:
        signal.signal(number, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, file=setup.stacks.fileno(), all_threads=True)
    os.write(setup.stacks.fileno(), b"\n")  # tells that it may be asked now
    use_one_thread(setup.libraries)
    keep_all_freed_memory()


def _orphan_check() -> Callable[[], bool]:
    """Return what tells whether the consumer is gone."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return lambda: False
    if (sentinel := open_sentinel(parent.pid)) is None:
        return lambda: not parent.is_alive()
    return lambda: bool(wait([sentinel], timeout=0))


class _Sender:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.watch = Stopwatch()

    def __call__(self, reply: Reply) -> None:
        timed = Reply(*reply[:6], *self.watch.lap())
        send_frame(self._descriptor, encode_reply(timed))


class _TooLarge(NamedTuple):
    """A batch that waits for a larger slot."""

    batch: Batch
    point: bytes


class _Worker:
    def __init__(self, setup: WorkerSetup, plan: FetchPlan, send: _Sender) -> None:
        self._setup = setup
        self._plan = plan
        self._send = send
        arena = ArenaView(setup.arena)
        self._control = arena.control
        self._memory = BatchMemory(arena)
        self._fetcher: Fetcher | None = None
        self._gives_as_made = False
        """Whether nobody has batches in hand between the default collate and their packing."""
        self._run = -1
        self._resume: Resume | None = None
        self._too_large: dict[tuple[int, int], _TooLarge] = {}
        self._seeds_tasks = True
        self._owned = setup.generators or OwnedGenerators(plan.drawing_parts)
        self._info = WatchedWorkerInfo(
            id=setup.worker_id,
            num_workers=setup.num_workers,
            seed=derive_seed(setup.base_seed, setup.ranks.rank, setup.worker_id) >> 1,
            dataset=plan.dataset,
        )

    def initialise(self, worker_init_fn: Callable[[int], None] | None) -> None:
        # Which is torch's own memory outside of a task, and in threads of the dataset.
        install_collate_into(empty_batch)
        seed_global_generators(
            self._setup.base_seed, self._setup.ranks.rank, self._setup.worker_id
        )
        _seed_torch(self._info.seed)
        set_worker_info(self._info)
        if worker_init_fn is not None:
            before = _generator_states()
            worker_init_fn(self._setup.worker_id)
            # Who seeds in worker_init_fn wants these seeds, not ours.
            self._seeds_tasks = before == _generator_states()
            self._owned.leave_changed(self._plan.drawing_parts)

    def work(self, reader: FrameReader) -> None:
        while (message := reader.read()) is not None:
            self._send.watch.lap()  # waiting for work is not work
            match decode_order(message):
                case Task() as task:
                    self._do(task)
                case SlotOffer(run, number, place):
                    self._move(run, number, place)
                case LiveState(state, epoch):
                    if epoch is not None:
                        tell(self._plan.dataset, "set_epoch", epoch)
                    load_live_state(self._plan.dataset, state)
                case Resume() as resume:
                    self._resume = resume
                case Leave():
                    return

    def _do(self, task: Task) -> None:
        if task.run < self._earliest_run():
            self._send(Reply(ReplyKind.CANCELLED, task.run, task.number, 0, b""))
            return
        self._send_and_leave(self._reply_to(task))

    def _reply_to(self, task: Task) -> Reply:
        is_end = False
        try:
            self._memory.begin(task.slot)
            try:
                batch = self._make(task)
            except StopIteration:
                is_end = True
            point = self._stream_point(task)
        except AllSkippedError:
            self._tell_skipped(task)
            return _answer(ReplyKind.EMPTY, task)
        except SystemExit:
            raise  # ends the worker, as it asks for; raised again it would end the consumer
        except BaseException as error:  # noqa: BLE001 - raised in the consumer
            self._tell_skipped(task)
            note_file_limit(error)
            return _answer(ReplyKind.ERROR, task, pack_error(error))
        if is_end:
            return _answer(ReplyKind.END, task, pickle.dumps(self._take_num_dropped()), point)
        self._tell_skipped(task)
        return self._reply_with(task.run, task.number, batch, point)

    def _move(self, run: int, number: int, place: SlotPlace) -> None:
        batch, point = self._too_large.pop((run, number))
        self._memory.forget_writers()
        try:
            self._memory.begin(place)
        except OSError as error:
            note_file_limit(error)
            reply = Reply(ReplyKind.ERROR, run, number, 0, pack_error(error))
        else:
            reply = self._reply_with(run, number, batch, point)
        self._send(reply)

    def _send_and_leave(self, reply: Reply) -> None:
        """Send a reply and leave the slot: an error if somebody keeps parts of that and cannot."""
        try:
            self._memory.leave(batch_stays=reply.kind is ReplyKind.TOO_LARGE)
        except SharedMemoryError as error:
            note_file_limit(error)
            self._too_large.pop((reply.run, reply.number), None)
            reply = reply._replace(kind=ReplyKind.ERROR, body=pack_error(error))
        self._send(reply)

    def _make(self, task: Task) -> Batch:
        if task.run != self._run:
            self._run = task.run
            self._fetcher = None
            earliest = self._earliest_run()
            self._too_large = {k: v for k, v in self._too_large.items() if k[0] >= earliest}
        scope = DrawScope(task.base_seed, task.epoch)
        with draw_scope(scope), allocating_with(self._memory.allocate):
            starts = self._fetcher is None
            if self._fetcher is None:
                self._fetcher = self._start_fetcher(task)
                self._fetcher.warn = partial(self._warn, task)
            else:
                self._seed(task, task.number)
            batch = self._fetcher.fetch(task.indices)
        if starts and self._plan.is_iterable and not self._info.was_asked:
            self._send(_answer(ReplyKind.UNSHARDED, task))
        return batch

    def _earliest_run(self) -> int:
        """Return the number of the run from which on tasks are to be done."""
        return int.from_bytes(self._control[:RUN_BYTES], "little", signed=True)

    def _start_fetcher(self, task: Task) -> Fetcher:
        self._info.forget_asked()
        resume, self._resume = self._resume, None
        point = resume.point if resume is not None and resume.run == task.run else None
        if point is None or not point.is_read_again:
            self._seed(task, task.number)
            return make_fetcher(self._plan, self._collate(), point)
        setup = self._setup
        self._seed(task, setup.worker_id)
        fetcher = make_fetcher(self._plan, self._collate(), point)
        for number in range(setup.worker_id, point.number + 1, setup.num_workers):
            if number > setup.worker_id:
                self._seed(task, number)
            fetcher.pass_over(task.indices)
        self._seed(task, task.number)
        return fetcher

    def _collate(self) -> Callable[[Any], Any]:
        plan = self._plan
        if plan.collate_fn is not default_collate:
            return plan.collate_fn
        collate = DefaultCollate(default_collate_fn_map)
        is_last = plan.batch_transform is None and plan.batched is None
        self._gives_as_made = collate.is_known and is_last
        return collate

    def _seed(self, task: Task, number: int) -> None:
        parts = (task.base_seed, task.epoch, self._setup.ranks.rank, number)
        if self._seeds_tasks:
            seed_global_generators(*parts)
        self._owned.seed(*parts)

    def _stream_point(self, task: Task) -> bytes:
        fetcher = self._fetcher
        point = None if fetcher is None else fetcher.stream_point(task.number)
        return b"" if point is None else as_bytes(point)

    def _reply_with(self, run: int, number: int, batch: Batch, point: bytes) -> Reply:
        writer = self._memory.writer
        try:
            body = pack(batch, writer, is_as_made=self._gives_as_made)
        except Exception as error:  # noqa: BLE001 - raised in the consumer
            path, culprit = find_unpicklable(
                batch, "batch", can_be_packed, classes_by_name=True
            )
            told = UnpicklableError(
                f"A batch was made, but {path} (a {type(culprit).__name__}) cannot be sent to the "
                f"main process ({type(error).__name__}: {error}): return plain containers of "
                "tensors, arrays, numbers and strings, with tensors detached and classes defined "
                "at the top level of a module, or set num_workers=0."
            )
            told.__cause__ = error
            return Reply(ReplyKind.UNPICKLABLE, run, number, 0, pack_error(told))
        if writer.fits:
            return Reply(ReplyKind.BATCH, run, number, writer.needed_bytes, body, point)
        self._too_large[run, number] = _TooLarge(batch, point)
        return Reply(ReplyKind.TOO_LARGE, run, number, writer.needed_bytes, b"")

    def _warn(self, task: Task, text: str) -> None:
        self._send(_answer(ReplyKind.WARNING, task, text.encode()))

    def _take_num_dropped(self) -> int:
        # Every task that waits behind the end is answered in the same way: count once.
        if self._fetcher is None:
            return 0
        dropped, self._fetcher.num_dropped = self._fetcher.num_dropped, 0
        return dropped

    def _tell_skipped(self, task: Task) -> None:
        if self._fetcher is not None and self._fetcher.skipped:
            skipped = [tuple(skip) for skip in self._fetcher.skipped]
            self._fetcher.skipped.clear()
            self._send(_answer(ReplyKind.SKIPPED, task, pickle.dumps(skipped)))


def _answer(kind: ReplyKind, task: Task, body: bytes = b"", point: bytes = b"") -> Reply:
    """Return a reply without a batch."""
    return Reply(kind, task.run, task.number, 0, body, point)


def _seed_torch(seed: int) -> None:
    if torch.accelerator.current_accelerator() is None:
        # Seeding devices that are not there takes milliseconds in a forked process.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _generator_states() -> tuple[Any, ...]:
    numpy_state = pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state
