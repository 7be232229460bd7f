"""Child processes that take parts of a job from a pipe and send back what came out."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from fastloader.errors import WorkerDiedError
from fastloader.shm import MemoryFile
from fastloader.sources._number_pipe import NumberPipe
from fastloader.sources._part_buffers import PartBuffers

__all__ = ["BUFFERS_PER_CHILD", "BufferedJob", "JobProcesses", "PartReply"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
TakeResult: TypeAlias = Callable[[int, Any], None]

_ONE_THREAD = dict.fromkeys(
    ("BLOSC_NTHREADS", "OMP_NUM_THREADS", "TIFFFILE_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
_END_SECONDS = 5.0
BUFFERS_PER_CHILD = 3
"""One that it works on, one that the parent takes, and one while the parent does a part itself."""


class _Job(Protocol):
    def run(self, part: int) -> Any: ...


@runtime_checkable
class BufferedJob(Protocol):
    """A job whose parts children make in shared memory, from which the parent takes them."""

    @property
    def buffer_bytes(self) -> int:
        """Most bytes that a part takes there, 1 or more."""
        ...

    def make(self, part: int, buffer: Bytes) -> None:
        """Make a part, in a child.

        Args:
            part: Its number.
            buffer: Written to, `buffer_bytes` long; holds what was made before.
        """
        ...

    def take(self, part: int, buffer: Bytes) -> None:
        """Take a part, in the parent.

        Args:
            part: Its number.
            buffer: As `make` left it; is used again afterwards.
        """
        ...


@dataclass(frozen=True, slots=True)
class PartReply:
    """What a child says of a part."""

    part: int
    result: Any = None
    """What `run` returned; None when the child only begins."""
    error: BaseException | None = None
    """What was raised."""
    is_done: bool = False
    buffer: int | None = None
    """Number of the buffer that the part was made in."""


class _Child:
    def __init__(self, command: list[str], inherited: list[int]) -> None:
        reader, writer = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter, our own code
                [*command, *map(str, inherited), str(writer)],
                pass_fds=[*inherited, writer],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )
        finally:
            os.close(writer)
        self.replies = Connection(reader, writable=False)
        self.part: int | None = None
        """What it works on."""


class JobProcesses:
    """Children that help with a job; none are started before `start`.

    **Processes:** each child is this interpreter, started afresh: nothing of the parent is
    inherited but the job, the queue and the buffers, so it does not matter what threads or
    devices the parent has. All end with the ``with`` block.
    """

    def __init__(self, job: _Job, queue: NumberPipe) -> None:
        """Take the job; it is pickled when children start.

        Args:
            job: What to do, see `fastloader.sources._jobs.Job`; if it is a `BufferedJob`,
                children make its parts in buffers.
            queue: Its parts.
        """
        self._job = job
        self._queue = queue
        self._children: list[_Child] = []
        self._open: dict[Connection, _Child] = {}
        self._buffers: PartBuffers | None = None
        self._resources = ExitStack()

    @property
    def num_started(self) -> int:
        """How many children were started."""
        return len(self._children)

    def start(self, num_children: int) -> None:
        """Start children, which begin at once."""
        content = pickle.dumps(self._job)
        command = [
            sys.executable, str(Path(__file__).with_name("_job_start.py")), json.dumps(sys.path)
        ]  # fmt: skip
        with MemoryFile.create(len(content)) as file:
            file.write(0, memoryview(content))
            descriptors = [self._queue.fileno(), file.fileno()]
            if isinstance(self._job, BufferedJob):
                buffers = PartBuffers.create(
                    BUFFERS_PER_CHILD * num_children, self._job.buffer_bytes
                )
                self._buffers = self._resources.enter_context(buffers)
                descriptors += buffers.descriptors
            for _ in range(num_children):
                child = _Child(command, descriptors)
                self._children.append(child)
                self._open[child.replies] = child

    def receive(self, take_result: TakeResult, *, wait_for: bool = False) -> None:
        """Hand on what the children have done.

        Args:
            take_result: Is called for each part that is done.
            wait_for: Wait until there is something.

        Raises:
            WorkerDiedError: If a child ended by itself.
        """
        ready = wait(list(self._open), None if wait_for else 0)
        while ready:
            for replies in ready:
                self._receive_from(self._open[replies], take_result)  # type: ignore[index]
            ready = wait(list(self._open), 0)

    def finish(self, take_result: TakeResult) -> None:
        """Wait for what the children still do.

        Args:
            take_result: Is called for each part that is done.

        Raises:
            WorkerDiedError: If a child ended by itself.
        """
        while self._open:
            self.receive(take_result, wait_for=True)

    def _receive_from(self, child: _Child, take_result: TakeResult) -> None:
        try:
            reply: PartReply = pickle.loads(child.replies.recv_bytes())  # noqa: S301 - our child
        except EOFError:
            self._forget(child)
            return
        if reply.error is not None:
            raise reply.error
        child.part = None if reply.is_done else reply.part
        if not reply.is_done:
            return
        if reply.buffer is not None:
            assert self._buffers is not None  # noqa: S101 - the child has one of them
            assert isinstance(self._job, BufferedJob)  # noqa: S101
            self._job.take(reply.part, self._buffers.view(reply.buffer))
            self._buffers.give_back(reply.buffer)
        take_result(reply.part, reply.result)

    def _forget(self, child: _Child) -> None:
        del self._open[child.replies]
        code = child.process.wait()
        if code or child.part is not None:
            doing = (
                "" if child.part is None else f" while it worked on {self._name(child.part)}"
            )
            reason = ", which is what happens when memory runs out" if code == -9 else ""
            raise WorkerDiedError(
                f"A process that reads images ended by itself with exit code {code}{reason}"
                f"{doing}: read with one thread (torch.set_num_threads(1)) to find the file."
            )

    def _name(self, part: int) -> str:
        describe = getattr(self._job, "describe", None)
        return str(describe(part)) if describe is not None else f"part {part}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._children:
            if kind is not None:
                child.process.kill()
            child.replies.close()
        self._resources.close()  # a child that waits for a buffer ends
        for child in self._children:
            try:
                child.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
