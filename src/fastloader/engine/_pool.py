"""Worker processes: taken on, spoken to, watched and ended."""

import os
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from multiprocessing.process import BaseProcess
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fastloader.engine._at_exit import end_at_exit
from fastloader.engine._depth import Depth
from fastloader.engine._fetch import FetchPlan
from fastloader.engine._frames import LENGTH_BYTES, READ_BYTES
from fastloader.engine._hazards import warn_of_hazards
from fastloader.engine._launch import inherited_launch, pickled_launch
from fastloader.engine._member import Member, end_processes
from fastloader.engine._messages import (
    Leave,
    LiveState,
    Order,
    Reply,
    ReplyKind,
    decode_reply,
    encode_order,
)
from fastloader.engine._pool_options import PoolOptions
from fastloader.engine._staffing import Staffing
from fastloader.engine._worker import RUN_BYTES
from fastloader.machine._busy_clock import read_queued
from fastloader.shm._arena import Arena, ArenaView, Slot
from fastloader.threads._held_interrupts import held_interrupts

if TYPE_CHECKING:
    from fastloader.engine._head_start import HeadStart

__all__ = ["Death", "Event", "WorkerPool", "WorkerReply"]

LEAVE_SECONDS = 0.15  # for workers to finish what they do; then they are ended
END_SECONDS = 0.3


class Death(NamedTuple):
    """A worker process has ended that was not told to."""

    worker: int


class WorkerReply(NamedTuple):
    """A message and who sent it."""

    worker: int
    reply: Reply


Event: TypeAlias = WorkerReply | Death


class WorkerPool:
    """The workers of a loader, idle between the runs over the data.

    With `PoolOptions.num_first` they are few at first, and `staffing` tells when to `resize`.

    **Processes:** belongs to the process that made it; in a forked child the methods that end
    workers or their tasks do nothing, and those that speak to them or listen raise an error.
    """

    def __init__(self, plan: FetchPlan, options: PoolOptions) -> None:
        self.options = options
        # These may raise, so they come before there is anything to close.
        warn_of_hazards(plan.dataset, forks=options.forks)
        self._launch = (
            inherited_launch(plan, options.worker_init_fn)
            if options.forks
            else pickled_launch(
                plan, options.worker_init_fn, stands_for_fork=options.stands_for_fork
            )
        )
        self.arena = Arena(options.pin)
        self.live_state = LiveState(None, None)
        """What the workers' copies of a `LiveDataset` were last told."""
        self.head_start: HeadStart | None = None
        """Of the run that begins next."""
        self.depth = Depth()
        """How many more batches are made ahead than usual, where that is automatic."""
        self.is_predictable = True
        """False once a head start was not what its run began with."""
        self._owner_pid = os.getpid()
        self._control = ArenaView(self.arena.file).control
        self._runs = -1
        self._reply_bytes = READ_BYTES  # of the latest in its pipe; at first as few as can be
        self._abandoned: dict[tuple[int, int], Slot] = {}
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._members: list[Member] = []
        self._leaving: list[Member] = []
        end_at_exit(self)
        self.staffing: Staffing | None = None
        """Decides how many workers there are; None where all are there from the start."""
        if options.num_first is not None:
            members = self._members  # not `self`, which would then be its own owner
            self.staffing = Staffing(
                options.num_workers,
                time.monotonic(),
                num_cpus=options.num_cpus,
                read_queued=lambda: read_queued(one.process.pid for one in members),
            )
        self.cancel_run()
        try:
            self.resize(options.num_first or options.num_workers)
        except BaseException:
            self.close()
            raise

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from that of the pool, which has the workers."""
        return os.getpid() != self._owner_pid

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

    def send(self, worker: int, *orders: Order) -> None:
        """Send orders; never waits. To a dead worker nothing is sent.

        Raises:
            RuntimeError: In a child that was forked from the process of this pool.
        """
        self._check_owner()
        member = self._members[worker]
        try:
            member.sender.send(*map(encode_order, orders))
        except BrokenPipeError:
            return  # its death is reported by `wait`
        if member.sender.has_waiting:
            self._watch_for_room(member)

    def wait(self, timeout_seconds: float | None) -> list[Event]:
        """Return what workers sent, and who died, after at most `timeout_seconds`.

        Raises:
            RuntimeError: In a child that was forked from the process of this pool.
        """
        self._check_owner()
        events: list[Event] = []
        if timeout_seconds != 0:
            held_interrupts.let_through()
        ready = self._selector.select(timeout_seconds)
        held_interrupts.hold()
        for key, _ in ready:
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
                    member.release()
                else:
                    events.append(Death(member.number))
        return events

    def count_unread(self, worker: int) -> int:
        """Return how many replies of a worker wait in its pipe, if they are as long as the latest.

        One that is too long for the pipe counts as soon as it begins. Safe in any thread.
        """
        members = self._members[worker : worker + 1]  # it may have left meanwhile
        num_bytes = sum(member.splitter.unread_bytes() for member in members)
        return max(1, round(num_bytes / self._reply_bytes)) if num_bytes else 0

    def abandon(self, run: int, number: int, slot: Slot) -> None:
        """Take a slot that a worker may still write to: it returns with the reply to the task."""
        self._abandoned[run, number] = slot

    def put_aside(self, worker: int, reply: Reply) -> None:
        """Take a reply to a task that is not of the run under way."""
        if self.head_start is not None and reply.run == self.head_start.scope.run:
            self.head_start.keep(worker, reply)
        elif reply.kind.is_final:
            slot = self._abandoned.pop((reply.run, reply.number), None)
            if slot is not None:
                self.arena.give_back(slot)

    def cancel_head_start(self) -> None:
        """Forget what was sent for the next run."""
        if self.head_start is not None:
            self.head_start.cancel()
            self.head_start = None

    def has_started(self, worker: int) -> bool:
        """Return whether a worker has come as far as to take tasks."""
        return self._members[worker].is_ready

    def restart(self, worker: int) -> None:
        """Put a new process in the place of a dead one."""
        dead = self._members[worker]
        self._members[worker] = self._start(worker)
        dead.release()  # if the start failed, `close` does
        self.send(worker, self.live_state)

    def stack_of(self, worker: int) -> str:
        """Return what a worker's threads are doing, or why that cannot be told."""
        return self._members[worker].stack()

    def close(self) -> None:
        """End all workers, in under half a second; harmless when repeated."""
        if self._is_closed or self.is_inherited:
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
            member.release()
        self.arena.close()
        if self._launch.file is not None:
            self._launch.file.close()

    def end(self) -> None:
        """End the workers at the exit of the process, which needs nothing else of the pool."""
        if not (self._is_closed or self.is_inherited):
            members = [*self._leaving, *self._members]
            end_processes(members, members, END_SECONDS)

    def disown(self) -> None:
        """Let multiprocessing know nothing of the workers: in a forked child, whose they are not."""
        for member in (*self._leaving, *self._members):
            member.disown()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the workers have ended, and modules may be gone already.
        if hasattr(self, "_is_closed") and not is_exiting():
            with held_interrupts.left_alone():
                self.close()

    def _start(self, number: int) -> Member:
        member = Member(number, self.options, self._launch, self.arena.file)
        replies = member.descriptors[1]
        self._selector.register(replies, selectors.EVENT_READ, ("replies", member))
        self._selector.register(member.sentinel, selectors.EVENT_READ, ("sentinel", member))
        return member

    def _check_owner(self) -> None:
        # What a forked child took from the pipes or put into them, its parent would miss or get.
        if self.is_inherited:
            raise RuntimeError(
                f"This iterator belongs to process {self._owner_pid}, which process {os.getpid()} "
                "was forked from: make another one here, with iter(loader)."
            )

    def _tell_run(self, run: int) -> None:
        if self.is_inherited:
            return  # the workers are at work for the parent
        self._control[:RUN_BYTES] = run.to_bytes(RUN_BYTES, "little", signed=True)

    def _received(self, member: Member) -> Iterator[WorkerReply]:
        for message in member.splitter.read():
            reply = decode_reply(message)
            if reply.kind is ReplyKind.READY:
                member.is_ready = True
            else:
                self._reply_bytes = LENGTH_BYTES + len(message)
            yield WorkerReply(member.number, reply)
        if member.splitter.is_ended:
            self._unregister(member.descriptors[1])

    def _watch_for_room(self, member: Member) -> None:
        descriptor = member.descriptors[0]
        if descriptor not in self._selector.get_map():
            self._selector.register(descriptor, selectors.EVENT_WRITE, ("room", member))

    def _send_waiting(self, member: Member) -> None:
        try:
            member.sender.flush()
        except BrokenPipeError:
            self._unregister(member.descriptors[0])
            return
        if not member.sender.has_waiting:
            self._unregister(member.descriptors[0])

    def _forget(self, member: Member) -> None:
        for descriptor in (*member.descriptors, member.sentinel):
            self._unregister(descriptor)

    def _unregister(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _end_processes(self, members: list[Member]) -> None:
        # Closing its replies is the last thing that a worker does by itself; who has not done
        # so in time is busy, maybe for long.
        staying = members
        deadline = time.monotonic() + LEAVE_SECONDS
        while (rest := deadline - time.monotonic()) > 0:
            staying = [m for m in members if not (m.splitter.is_ended or m.is_dead)]
            if not staying:
                break
            self.wait(rest)
        end_processes(staying, members, END_SECONDS)
