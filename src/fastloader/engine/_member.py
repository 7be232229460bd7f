"""One worker process as its pool sees it: started, asked where it is, let go."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from multiprocessing import process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from fastloader.engine._frames import FrameSender, FrameSplitter
from fastloader.engine._launch import Launch, importable_main
from fastloader.engine._one_thread import find_libraries
from fastloader.engine._pool_options import PoolOptions
from fastloader.engine._worker import WorkerSetup, run_worker
from fastloader.machine._process_end import open_sentinel
from fastloader.shm._memory_file import MemoryFile
from fastloader.threads._deferred_interrupt import interrupts_deferred

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = ["Member", "end_processes"]

STACK_BYTES = 1 << 16
STACK_SECONDS = 0.3
NOT_STARTED = "(the process has not started yet)"

_GROUP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""Schedulers send these to the whole group of processes. Where the consumer has a handler, to save
its state, say, it still needs its workers."""

_consumer_descriptors: set[int] = set()
"""What pools of this process speak to and watch their workers by: a forked worker closes them."""


class Member:
    """A worker process and the pipes to and from it.

    Args:
        number: Of the worker in its pool.
        options: How to start it.
        launch: What it works with.
        arena: The file of the slots.

    **Processes:** the consumer's side; made, asked and released by its pool.
    """

    def __init__(
        self, number: int, options: PoolOptions, launch: Launch, arena: MemoryFile
    ) -> None:
        self.number = number
        self.is_ready = False
        self.is_dead = False
        self.sentinel = -1
        """Can be read from when the process has ended."""
        task_reader, task_writer = options.context.Pipe(duplex=False)
        reply_reader, reply_writer = options.context.Pipe(duplex=False)
        lifeline_reader, lifeline_writer = options.context.Pipe(duplex=False)
        self._stacks = MemoryFile.create(1)
        left_alone = tuple(n for n in _GROUP_SIGNALS if callable(signal.getsignal(n)))
        self.is_deaf = signal.SIGTERM in left_alone
        """Whether only a kill ends it while it is busy."""
        self.descriptors = _take_descriptors(task_writer, reply_reader)
        """To write tasks to, and to read replies from."""
        [self._lifeline] = _take_descriptors(lifeline_writer)
        setup = WorkerSetup(
            worker_id=number,
            num_workers=options.num_workers,
            ranks=options.ranks,
            base_seed=options.base_seed,
            tasks=task_reader,
            replies=reply_writer,
            lifeline=lifeline_reader,
            arena=arena,
            stacks=self._stacks,
            # The set itself: what is in it may be closed before the fork, by a garbage collection.
            foreign_descriptors=_consumer_descriptors if options.forks else frozenset(),
            libraries=find_libraries() if options.forks else None,
            generators=launch.find_generators(),
            ignored_signals=left_alone,
        )
        self.process: BaseProcess = options.context.Process(  # type: ignore[attr-defined]
            target=run_worker, args=(setup, launch), daemon=True
        )
        try:
            with (
                importable_main(options.context),
                interrupts_deferred() if options.forks else nullcontext(),
            ):
                self.process.start()
        except BaseException as error:
            _note_remedy(error)
            self.release()
            raise
        finally:
            task_reader.close()
            reply_writer.close()
            lifeline_reader.close()
        if (sentinel := open_sentinel(self.process.pid)) is None:
            self.sentinel = self.process.sentinel
        else:
            self.sentinel = sentinel
            _consumer_descriptors.add(sentinel)
        self.sender = FrameSender(self.descriptors[0])
        self.splitter = FrameSplitter(self.descriptors[1])

    def stack(self) -> str:
        """Return what the worker's threads are doing, or why that cannot be told."""
        pid = self.process.pid
        if self.is_dead or pid is None:
            return "(the process has ended)"
        descriptor = self._stacks.fileno()
        # The place in the file is shared with the worker, which writes here.
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        if not start:
            return NOT_STARTED  # the signal would end a process that does not listen to it yet
        os.kill(pid, signal.SIGUSR1)
        text = ""
        deadline = time.monotonic() + STACK_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.02)
            longer = os.pread(descriptor, STACK_BYTES, start).decode(errors="replace")
            if longer and longer == text:
                break
            text = longer
        return text.strip() or "(no answer)"

    def disown(self) -> None:
        """Let multiprocessing know nothing of the process."""
        process._children.discard(self.process)  # type: ignore[attr-defined]  # noqa: SLF001

    def release(self) -> None:
        """Close what the process was spoken to and watched by, at its end.

        Once: afterwards the numbers of its descriptors may be those of other members.
        """
        if self.sentinel >= 0:  # else it was interrupted at its start, and may live
            # Multiprocessing keeps it where SIGCHLD is ignored, as nobody can wait for it then.
            self.disown()
        for descriptor in (*self.descriptors, self._lifeline, self.sentinel):
            if descriptor in _consumer_descriptors:
                _consumer_descriptors.discard(descriptor)
                os.close(descriptor)
        self._stacks.close()


def _take_descriptors(*connections: Connection) -> tuple[int, ...]:
    """Return descriptors of connections, which are closed, and note that they are this process's."""
    descriptors = tuple(os.dup(connection.fileno()) for connection in connections)
    _consumer_descriptors.update(descriptors)
    for connection in connections:
        connection.close()
    return descriptors


def _note_remedy(error: BaseException) -> None:
    """Say what to do about an error of multiprocessing that does not say so itself."""
    if isinstance(error, AssertionError) and process.current_process().daemon:
        error.add_note(
            "Neither workers of a loader nor processes of multiprocessing.Pool may start processes: "
            "set num_workers=0 or workers='threads' here, or take processes that may "
            "(concurrent.futures.ProcessPoolExecutor, or daemon=False)."
        )
    elif "AF_UNIX path too long" in str(error):
        error.add_note(
            "The path of the folder for temporary files is too long for the socket of the fork "
            "server: set the environment variable TMPDIR to a shorter one."
        )
    elif "SemLock created in a fork context" in str(error):
        error.add_note(
            "The dataset, collate_fn or worker_init_fn holds a lock, a queue or a shared value of "
            "multiprocessing that was made for forked processes: make it with "
            "multiprocessing.get_context('spawn'), or set multiprocessing_context='fork'."
        )
    elif isinstance(error, BlockingIOError):
        error.add_note(
            "The system lets this user or this container start no more processes and threads: raise "
            "the limit (ulimit -u, or pids.max of the control group), or lower num_workers."
        )
    elif isinstance(error, FileNotFoundError) and not _has_current_folder():
        error.add_note(
            "The current folder was removed, which a worker would start in: change to another one "
            "with os.chdir, or set multiprocessing_context='fork'."
        )


def _has_current_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def end_processes(staying: Sequence[Member], members: Sequence[Member], seconds: float) -> None:
    """End worker processes and wait until they are gone.

    Args:
        staying: Those that have not left by themselves: they are told to end.
        members: All.
        seconds: To wait for all of them in all, before those that remain are killed.
    """
    for member in staying:
        if member.is_deaf:
            member.process.kill()
        else:
            member.process.terminate()
    deadline = time.monotonic() + seconds
    for member in members:
        member.process.join(max(0.0, deadline - time.monotonic()))
        if member.process.is_alive():
            member.process.kill()
            member.process.join()
