"""The main function of a child process that does parts of a job."""

import os
import pickle
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

from fastloader.errors import FastLoaderError
from fastloader.shm import MemoryFile, providing_memory_files
from fastloader.sources._job_processes import PartQueue, PartReply

__all__ = ["run_child"]


def run_child(descriptors: list[int]) -> None:
    """Do parts until none are left or the parent is gone.

    **Processes:** runs in the child; all descriptors are inherited.

    Args:
        descriptors: Of the queue, of the pickled job, of the memory files that it refers to,
            and last of the pipe for replies.
    """
    # Ctrl-C reaches the whole group: the parent decides, and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    queue = PartQueue(descriptors[0])
    replies = Connection(descriptors[-1], readable=False)
    memory_files = [MemoryFile(descriptor) for descriptor in descriptors[2:-1]]
    with MemoryFile(descriptors[1]) as file, providing_memory_files(memory_files):
        job = pickle.loads(file.map())  # noqa: S301 - of our parent
    try:
        while (part := queue.take()) is not None and os.getppid() == parent:
            _send(replies, PartReply(part))
            _send(replies, _do(job, part))
    except BrokenPipeError:
        pass  # the parent has stopped listening


def _do(job: Any, part: int) -> PartReply:
    try:
        return PartReply(part, job.run(part), is_done=True)
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
