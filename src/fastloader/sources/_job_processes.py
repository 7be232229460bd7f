"""Child processes that take parts of a job from a pipe and send back what came out."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from fastloader.errors import WorkerDiedError
from fastloader.shm import MemoryFile, collecting_memory_files

__all__ = ["JobProcesses", "PartQueue", "PartReply"]

_NUMBER_BYTES = 4
_MAX_PARTS = (1 << 15) // _NUMBER_BYTES  # an empty pipe takes them all at once
_ONE_THREAD = dict.fromkeys(
    ("BLOSC_NTHREADS", "OMP_NUM_THREADS", "TIFFFILE_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
_END_SECONDS = 5.0


class _Job(Protocol):
    def run(self, part: int) -> Any: ...


@dataclass(frozen=True, slots=True)
class PartReply:
    """What a child says of a part."""

    part: int
    result: Any = None
    """What `run` returned; None when the child only begins."""
    error: BaseException | None = None
    """What `run` raised."""
    is_done: bool = False


class PartQueue:
    """Numbers of the parts to do, in a pipe from which every process takes the next one.

    **Processes:** made by one, which fills it; children inherit the end to read from. A read
    of four bytes gives a whole number, since the pipe holds nothing else.
    """

    def __init__(self, descriptor: int) -> None:
        """Take from a pipe that is filled.

        Args:
            descriptor: Its end to read from.
        """
        self._reader = descriptor

    @classmethod
    def fill(cls, num_parts: int) -> Self:
        """Make a pipe with the numbers in it.

        Args:
            num_parts: Parts to do, at most 8,192.

        Raises:
            ValueError: If there are more.
        """
        if num_parts > _MAX_PARTS:
            raise ValueError(f"A job has {_MAX_PARTS} parts at most, but got {num_parts}.")
        reader, writer = os.pipe()
        numbers = (number.to_bytes(_NUMBER_BYTES, "little") for number in range(num_parts))
        os.write(writer, b"".join(numbers))
        os.close(writer)
        return cls(reader)

    def fileno(self) -> int:
        """Return the end to read from."""
        return self._reader

    def take(self) -> int | None:
        """Return the number of a part that nobody else takes, or None when all are taken."""
        number = os.read(self._reader, _NUMBER_BYTES)
        return int.from_bytes(number, "little") if number else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)


class _Child:
    def __init__(self, command: list[str], inherited: list[int]) -> None:
        reader, writer = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter, our own code
                [*command, str(writer)],
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
    inherited but the job, the queue and the memory files that the job writes to, so it does
    not matter what threads or devices the parent has. All end with the ``with`` block.
    """

    def __init__(self, job: _Job, queue: PartQueue) -> None:
        """Take the job; it is pickled when children start.

        Args:
            job: What to do, see `fastloader.sources._jobs.Job`.
            queue: Its parts.
        """
        self._job = job
        self._queue = queue
        self._children: list[_Child] = []
        self._open: dict[Connection, _Child] = {}

    @property
    def num_started(self) -> int:
        """How many children were started."""
        return len(self._children)

    def start(self, num_children: int) -> None:
        """Start children, which begin at once.

        Args:
            num_children: How many.
        """
        with collecting_memory_files() as memory_files:
            content = pickle.dumps(self._job)
        with MemoryFile.create(len(content)) as file:
            file.write(0, memoryview(content))
            descriptors = [self._queue.fileno(), file.fileno()]
            descriptors += [memory.fileno() for memory in memory_files]
            command = [
                sys.executable,
                str(Path(__file__).with_name("_job_start.py")),
                json.dumps(sys.path),
                *map(str, descriptors),
            ]
            for _ in range(num_children):
                child = _Child(command, descriptors)
                self._children.append(child)
                self._open[child.replies] = child

    def receive(
        self, take_result: Callable[[int, Any], None], *, wait_for: bool = False
    ) -> None:
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

    def finish(self, take_result: Callable[[int, Any], None]) -> None:
        """Wait for what the children still do.

        Args:
            take_result: Is called for each part that is done.

        Raises:
            WorkerDiedError: If a child ended by itself.
        """
        while self._open:
            self.receive(take_result, wait_for=True)

    def _receive_from(self, child: _Child, take_result: Callable[[int, Any], None]) -> None:
        try:
            reply: PartReply = pickle.loads(child.replies.recv_bytes())  # noqa: S301 - our child
        except EOFError:
            self._forget(child)
            return
        if reply.error is not None:
            raise reply.error
        child.part = None if reply.is_done else reply.part
        if reply.is_done:
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
        for child in self._children:
            try:
                child.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
