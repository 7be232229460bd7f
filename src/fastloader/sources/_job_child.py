"""The main function of a child process that does parts of a job."""

import os
import pickle
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

from fastloader.errors import FastLoaderError
from fastloader.shm import MemoryFile
from fastloader.sources._job_processes import PartReply
from fastloader.sources._number_pipe import NumberPipe
from fastloader.sources._part_buffers import PartBuffers

__all__ = ["run_child"]

_LOOK_SECONDS = 1.0
"""Without a free buffer, until a child looks whether its parent lives: a process that the parent
forked meanwhile may keep the pipe of buffers open."""


def run_child(descriptors: list[int]) -> None:
    """Do parts until none are left or the parent is gone.

    **Processes:** runs in the child; all descriptors are inherited.

    Args:
        descriptors: Of the queue, of the pickled job, of its buffers if it has some, and last of
            the pipe for replies.
    """
    # Ctrl-C reaches the whole group: the parent decides, and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    queue = NumberPipe(descriptors[0])
    replies = Connection(descriptors[-1], readable=False)
    with MemoryFile(descriptors[1]) as file:
        job = pickle.loads(file.map())  # noqa: S301 - of our parent
    buffers, buffer = None, None
    if len(descriptors) > 3:
        buffers = PartBuffers.inherited(descriptors[2:4], job.buffer_bytes)
    try:
        while os.getppid() == parent:
            if buffers is not None and (buffer := buffers.take(_LOOK_SECONDS)) is None:
                continue
            if (part := queue.take()) is None:
                return
            _send(replies, PartReply(part))
            _send(replies, _do(job, part, buffers, buffer))
    except (BrokenPipeError, EOFError):
        pass  # the parent has stopped listening, or giving buffers back


def _do(job: Any, part: int, buffers: PartBuffers | None, buffer: int | None) -> PartReply:
    try:
        if buffers is None or buffer is None:
            return PartReply(part, job.run(part), is_done=True)
        job.make(part, buffers.view(buffer))
        return PartReply(part, is_done=True, buffer=buffer)
    except Exception as error:  # noqa: BLE001 - raised in the parent
        return PartReply(part, error=_portable(error))


def _portable(error: Exception) -> Exception:
    if not isinstance(error, FastLoaderError):
        error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - some can be pickled, but not loaded
    except Exception:  # noqa: BLE001 - any error of any library
        return RuntimeError(traceback.format_exc())
    return error


def _send(replies: Connection, reply: PartReply) -> None:
    replies.send_bytes(pickle.dumps(reply))
