"""Worker processes: started, spoken to, watched and ended."""

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fastloader._ranks import Ranks
from fastloader.engine._fetch import FetchPlan
from fastloader.engine._frames import FrameSender, FrameSplitter
from fastloader.engine._hazards import warn_of_hazards
from fastloader.engine._launch import (
    Launch,
    WorkerInit,
    importable_main,
    inherited_launch,
    pickled_launch,
)
from fastloader.engine._messages import (
    Leave,
    LiveState,
    Order,
    Reply,
    ReplyKind,
    decode_reply,
    encode_order,
)
from fastloader.engine._staffing import Staffing
from fastloader.engine._worker import RUN_BYTES, WorkerSetup, run_worker
from fastloader.shm._arena import Arena, ArenaView, Pin, Slot
from fastloader.shm._memory_file import MemoryFile

if TYPE_CHECKING:
    from fastloader.engine._head_start import HeadStart

__all__ = ["Death", "Event", "PoolOptions", "WorkerPool", "WorkerReply"]

LEAVE_SECONDS = 0.15  # for workers to finish what they do; then they are ended
END_SECONDS = 0.3
STACK_BYTES = 1 << 16
STACK_SECONDS = 0.3

_consumer_descriptors: set[int] = set()
"""This process's ends of the pipes of all pools: a forked worker closes what it inherits."""


@dataclass(frozen=True)
class PoolOptions:
    """How to start workers."""

    context: BaseContext
    num_workers: int
    worker_init_fn: WorkerInit | None
    ranks: Ranks
    base_seed: int
    pin: Pin | None = None
    """Locks the memory of slots, for a device that reads them itself."""
    num_first: int | None = None
    """Workers to begin with, where more are taken on as they are needed; None starts all."""


class Death(NamedTuple):
    """A worker process has ended that was not told to."""

    worker: int


class WorkerReply(NamedTuple):
    """A message and who sent it."""

    worker: int
    reply: Reply


Event: TypeAlias = WorkerReply | Death


@dataclass(eq=False)
class _Member:
    number: int
    process: BaseProcess
    sender: FrameSender
    splitter: FrameSplitter
    stacks: MemoryFile
    descriptors: tuple[int, int]
    is_ready: bool = False
    is_dead: bool = False


class WorkerPool:
    """The workers of a loader, idle between the runs over the data.

    With `PoolOptions.num_first` they are few at first, and `staffing` tells when to `resize`.

    **Processes:** belongs to the process that made it; in a forked child every method that
    ends or speaks to workers does nothing.
    """

    def __init__(self, plan: FetchPlan, options: PoolOptions) -> None:
        self.options = options
        # These may raise, so they come before there is anything to close.
        warn_of_hazards(plan.dataset, forks=self._forks)
        self._launch = self._make_launch(plan)
        self.arena = Arena(options.pin)
        self.live_state = LiveState(None, None)
        """What the workers' copies of a `LiveDataset` were last told."""
        self.head_start: HeadStart | None = None
        """Of the run that begins next."""
        self.is_predictable = True
        """False once a head start was not what its run began with."""
        self._owner_pid = os.getpid()
        self._control = ArenaView(self.arena.file).control
        self._runs = -1
        self._abandoned: dict[tuple[int, int], list[Slot]] = {}
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._members: list[_Member] = []
        self._leaving: list[_Member] = []
        self.staffing: Staffing | None = None
        """Decides how many workers there are; None where all are there from the start."""
        if options.num_first is not None:
            self.staffing = Staffing(options.num_workers, time.monotonic())
        self.cancel_run()
        try:
            self.resize(options.num_first or options.num_workers)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes, in order of their numbers."""
        return [member.process for member in self._members]

    @property
    def num_live(self) -> int:
        """Workers there are, at work or starting."""
        return len(self._members)

    @property
    def num_ready(self) -> int:
        """Workers that have started, up to the first one that has not."""
        return sum(1 for _ in takewhile(attrgetter("is_ready"), self._members))

    def resize(self, num_workers: int) -> None:
        """Start workers, or let those with the highest numbers leave.

        Args:
            num_workers: How many there are to be; those that leave have no task of this run.
        """
        for number in range(self.num_live, num_workers):
            self._members.append(self._start(number))
            self.send(number, self.live_state)
        while self.num_live > num_workers:
            self.send(self.num_live - 1, Leave())
            self._leaving.append(self._members.pop())

    def reserve_run(self) -> int:
        """Return the number of a run that begins later; its tasks may be sent now."""
        self._runs += 1
        return self._runs

    def begin_run(self, run: int | None = None) -> int:
        """Cancel what is left of earlier runs and return the number of this one.

        Args:
            run: From `reserve_run`; None takes a new number.
        """
        number = self.reserve_run() if run is None else run
        self._tell_run(number)
        return number

    def cancel_run(self) -> None:
        """Make workers skip the tasks that wait in their pipes."""
        self._tell_run(self._runs + 1)

    def send(self, worker: int, order: Order) -> None:
        """Send an order; never waits. To a dead worker nothing is sent."""
        member = self._members[worker]
        try:
            member.sender.send(encode_order(order))
        except BrokenPipeError:
            return  # its death is reported by `wait`
        if member.sender.has_waiting:
            self._watch_for_room(member)

    def wait(self, timeout_seconds: float | None) -> list[Event]:
        """Return what workers sent, and who died, after at most `timeout_seconds`."""
        events: list[Event] = []
        for key, _ in self._selector.select(timeout_seconds):
            role, member = key.data
            if role == "replies":
                events.extend(self._received(member))
            elif role == "room":
                self._send_waiting(member)
            elif not member.is_dead:
                events.extend(self._received(member))  # its last words come before its death
                member.is_dead = True
                self._forget(member)
                if member in self._leaving:
                    self._leaving.remove(member)
                    member.process.join()
                    self._release(member)
                else:
                    events.append(Death(member.number))
        return events

    def abandon(self, run: int, number: int, slot: Slot) -> None:
        """Take a slot that a worker may still write to: it returns at the task's last reply."""
        self._abandoned.setdefault((run, number), []).append(slot)

    def settle(self, reply: Reply) -> None:
        """Take back the abandoned slots of a task if its worker is done with them."""
        if reply.kind not in {ReplyKind.SKIPPED, ReplyKind.UNSHARDED}:
            for slot in self._abandoned.pop((reply.run, reply.number), ()):
                self.arena.give_back(slot)

    def put_aside(self, worker: int, reply: Reply) -> None:
        """Take a reply to a task that is not of the run under way."""
        if self.head_start is not None and reply.run == self.head_start.scope.run:
            self.head_start.keep(worker, reply)
        else:
            self.settle(reply)

    def cancel_head_start(self) -> None:
        """Forget what was sent for the next run."""
        if self.head_start is not None:
            self.head_start.cancel()
            self.head_start = None

    def restart(self, worker: int) -> None:
        """Put a new process in the place of a dead one."""
        self._release(self._members[worker])
        self._members[worker] = self._start(worker)
        self.send(worker, self.live_state)

    def stack_of(self, worker: int) -> str:
        """Return what a worker's threads are doing, or why that cannot be told."""
        member = self._members[worker]
        pid = member.process.pid
        if member.is_dead or pid is None:
            return "(the process has ended)"
        descriptor = member.stacks.fileno()
        start = os.lseek(
            descriptor, 0, os.SEEK_CUR
        )  # shared with the worker, which writes here
        os.kill(pid, signal.SIGUSR1)
        text = ""
        deadline = time.monotonic() + STACK_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.02)
            longer = os.pread(descriptor, STACK_BYTES, start).decode(errors="replace")
            if longer and longer == text:
                break
            text = longer
        return text.strip() or "(no answer: the process has not started yet)"

    def close(self) -> None:
        """End all workers, in under half a second; harmless when repeated."""
        if self._is_closed or os.getpid() != self._owner_pid:
            return
        self._is_closed = True
        self.cancel_run()
        for member in self._members:
            if not member.is_dead:
                self.send(member.number, Leave())
        members = [*self._leaving, *self._members]
        self._end_processes(members)
        self._selector.close()
        for member in members:
            self._release(member)
        self.arena.close()
        if self._launch.file is not None:
            self._launch.file.close()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit multiprocessing has ended the workers, and modules may be gone already.
        if hasattr(self, "_is_closed") and not is_exiting():
            self.close()

    def _make_launch(self, plan: FetchPlan) -> Launch:
        make = inherited_launch if self._forks else pickled_launch
        return make(plan, self.options.worker_init_fn)

    @property
    def _forks(self) -> bool:
        return self.options.context.get_start_method() == "fork"

    def _start(self, number: int) -> _Member:
        options = self.options
        task_reader, task_writer = options.context.Pipe(duplex=False)
        reply_reader, reply_writer = options.context.Pipe(duplex=False)
        stacks = MemoryFile.create(1)
        ends = (task_writer.fileno(), reply_reader.fileno())
        foreign = (*_consumer_descriptors, *ends) if self._forks else ()
        setup = WorkerSetup(
            worker_id=number,
            num_workers=options.num_workers,
            ranks=options.ranks,
            base_seed=options.base_seed,
            tasks=task_reader,
            replies=reply_writer,
            arena=self.arena.file,
            stacks=stacks,
            foreign_descriptors=foreign,
        )
        process = options.context.Process(  # type: ignore[attr-defined]
            target=run_worker, args=(setup, self._launch), daemon=True
        )
        try:
            with importable_main(options.context):
                process.start()
        finally:
            task_reader.close()
            reply_writer.close()
        descriptors = (os.dup(ends[0]), os.dup(ends[1]))
        task_writer.close()
        reply_reader.close()
        _consumer_descriptors.update(descriptors)
        member = _Member(
            number,
            process,
            FrameSender(descriptors[0]),
            FrameSplitter(descriptors[1]),
            stacks,
            descriptors,
        )
        self._selector.register(descriptors[1], selectors.EVENT_READ, ("replies", member))
        self._selector.register(process.sentinel, selectors.EVENT_READ, ("sentinel", member))
        return member

    def _tell_run(self, run: int) -> None:
        self._control[:RUN_BYTES] = run.to_bytes(RUN_BYTES, "little", signed=True)

    def _received(self, member: _Member) -> Iterator[WorkerReply]:
        for message in member.splitter.read():
            reply = decode_reply(message)
            if reply.kind is ReplyKind.READY:
                member.is_ready = True
            yield WorkerReply(member.number, reply)
        if member.splitter.is_ended:
            self._unregister(member.descriptors[1])

    def _watch_for_room(self, member: _Member) -> None:
        descriptor = member.descriptors[0]
        if descriptor not in self._selector.get_map():
            self._selector.register(descriptor, selectors.EVENT_WRITE, ("room", member))

    def _send_waiting(self, member: _Member) -> None:
        try:
            member.sender.flush()
        except BrokenPipeError:
            self._unregister(member.descriptors[0])
            return
        if not member.sender.has_waiting:
            self._unregister(member.descriptors[0])

    def _forget(self, member: _Member) -> None:
        for descriptor in (*member.descriptors, member.process.sentinel):
            self._unregister(descriptor)

    def _unregister(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _end_processes(self, members: list[_Member]) -> None:
        # Closing its replies is the last thing that a worker does by itself; who has not done
        # so in time is busy, maybe for long.
        staying = members
        deadline = time.monotonic() + LEAVE_SECONDS
        while (rest := deadline - time.monotonic()) > 0:
            staying = [m for m in members if not (m.splitter.is_ended or m.is_dead)]
            if not staying:
                break
            self.wait(rest)
        for member in staying:
            member.process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for member in members:
            member.process.join(max(0.0, deadline - time.monotonic()))
            if member.process.is_alive():
                member.process.kill()
                member.process.join()

    def _release(self, member: _Member) -> None:
        for descriptor in member.descriptors:
            if descriptor in _consumer_descriptors:
                _consumer_descriptors.discard(descriptor)
                os.close(descriptor)
        member.stacks.close()
