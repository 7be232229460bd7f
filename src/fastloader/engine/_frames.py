"""Messages over plain pipes: a length, then the bytes; no threads and no locks."""

import fcntl
import os
import select
import struct
import termios
from collections import deque
from collections.abc import Callable

__all__ = [
    "LENGTH_BYTES",
    "READ_BYTES",
    "FrameReader",
    "FrameSender",
    "FrameSplitter",
    "send_frame",
]

LENGTH_BYTES = 8
READ_BYTES = 1 << 16  # what a pipe holds
LIVENESS_SECONDS = 5.0


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH_BYTES, "little") + message


def send_frame(descriptor: int, message: bytes) -> None:
    """Write one message to a blocking pipe; waits while the pipe is full.

    Raises:
        BrokenPipeError: If nobody will read it any more.
    """
    rest = memoryview(_framed(message))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class FrameSplitter:
    """Cuts the bytes that a non-blocking pipe has into messages.

    **Processes:** used by the consumer, one for each worker.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._received = bytearray()
        self.is_ended = False
        """True when the other side has closed its end and all was read."""

    def read(self) -> list[bytes]:
        """Return the messages that have arrived as a whole; never waits."""
        self._fill()
        messages = []
        start = 0
        while (begin := start + LENGTH_BYTES) <= len(self._received):
            end = begin + int.from_bytes(self._received[start:begin], "little")
            if end > len(self._received):
                break
            messages.append(bytes(self._received[begin:end]))
            start = end
        del self._received[:start]
        return messages

    def unread_bytes(self) -> int:
        """Return how many bytes wait in the pipe; safe in any thread."""
        try:
            told = fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(struct.calcsize("i")))
        except OSError:  # closed meanwhile
            return 0
        return int(struct.unpack("i", told)[0])

    def _fill(self) -> None:
        while not self.is_ended:
            try:
                chunk = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                return
            self._received += chunk
            self.is_ended = not chunk
            if len(chunk) < READ_BYTES:
                return


class FrameReader:
    """Reads messages from a pipe one after the other, waiting for each.

    **Processes:** used by a worker. A pipe that no process can write to any more ends it, and
    so does `is_orphan`, asked after five seconds without one, for the case that a stranger inherited the
    other end.
    """

    def __init__(self, descriptor: int, is_orphan: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._is_orphan = is_orphan
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._received = bytearray()

    def read(self) -> bytes | None:
        """Return the next message, or None when there will be none."""
        if not self._fill(LENGTH_BYTES):
            return None
        end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "little")
        if not self._fill(end):
            return None
        message = bytes(self._received[LENGTH_BYTES:end])
        del self._received[:end]
        return message

    def _fill(self, size_bytes: int) -> bool:
        """Receive until there are so many bytes, and return whether there are."""
        while len(self._received) < size_bytes:
            while not self._poll.poll(LIVENESS_SECONDS * 1000):
                if self._is_orphan():
                    return False
            chunk = os.read(self._descriptor, READ_BYTES)
            if not chunk:
                return False
            self._received += chunk
        return True


class FrameSender:
    """Sends messages over a non-blocking pipe, keeping what does not fit for later.

    So the consumer never waits for a worker that itself waits for the consumer.

    **Processes:** used by the consumer, one for each worker.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._waiting: deque[memoryview] = deque()

    @property
    def has_waiting(self) -> bool:
        """True while bytes wait for room in the pipe."""
        return bool(self._waiting)

    def send(self, *messages: bytes) -> None:
        """Send messages, now as far as there is room; several wake the other side once.

        Raises:
            BrokenPipeError: If nobody will read it any more.
        """
        self._waiting.append(memoryview(b"".join(map(_framed, messages))))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room.

        Raises:
            BrokenPipeError: If nobody will read it any more.
        """
        while self._waiting:
            try:
                written = os.write(self._descriptor, self._waiting[0])
            except BlockingIOError:
                return
            if written < len(self._waiting[0]):
                self._waiting[0] = self._waiting[0][written:]
                return
            self._waiting.popleft()
