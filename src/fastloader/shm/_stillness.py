"""What is done to memory while nothing but the running thread can write to it."""

import operator
import re
import sys
import threading
from itertools import chain, starmap
from pathlib import Path
from types import FrameType

from fastloader.machine._address_space import read_spans
from fastloader.shm._mapping_over import Call
from fastloader.threads._interpreter_lock import has_interpreter_lock

__all__ = ["call_undisturbed", "find_hidden_writer"]

_HARMLESS_DEVICES = re.compile(
    r"/dev/(null|zero|full|u?random|console|ptmx|tty.*|pts/.*|shm/.*)"
)
_WAITING = {
    ("fastloader.threads._crew", "_stand_by"),
    ("concurrent.futures.thread", "_worker"),
    ("selectors", "select"),
    ("socket", "accept"),
    ("threading", "_wait_for_tstate_lock"),
    ("threading", "join"),
    ("threading", "wait"),
}
"""Functions, by module and name, that call no others but to wait, or to copy to batches for a thread that waits for it."""


def find_hidden_writer(root: Path = Path("/proc/self")) -> str | None:
    """Return what may write to this process's memory by another way than its threads, if any.

    Devices do, and the system where it was asked to read files in the background: to pages that
    they have taken hold of, whatever is mapped at their addresses later.

    Args:
        root: Where the system tells of this process.

    Returns:
        What was found, in words; a reason, too, where the system does not tell.
    """
    try:
        status = (root / "status").read_text(encoding="utf-8")
        if re.search(r"^Vm(Pin|Lck):\s*[1-9]", status, re.MULTILINE):
            return "memory of this process is locked"
        if any(span.name == "/[aio]" for span in read_spans(root / "maps")):
            return "files are read in the background (aio)"
        for descriptor in (root / "fd").iterdir():
            target = _target(descriptor)
            if target == "anon_inode:[io_uring]":
                return "files are read in the background (io_uring)"
            if target.startswith("/dev/") and not _HARMLESS_DEVICES.fullmatch(target):
                return f"a device is open ({target})"
    except OSError as error:
        return f"the system does not tell what this process has open ({error})"
    return None


def call_undisturbed(*calls: Call) -> bool:
    """Make calls one after the other while all other Python threads wait.

    Between two steps of Python another thread may get its turn, be it that this one has just
    looked what it does. So nothing in between is Python: the threads are looked at once more
    and the calls made by one chain of iterators, within a single call of ``all``. Threads that
    libraries have started are not seen.

    Args:
        calls: Of functions that keep the interpreter (as those of `ctypes.PyDLL` do).

    Returns:
        Whether all returned what was expected; after the first that does not, no more are made.
        False without any call where another thread does anything but wait, or Python has no
        lock that all threads share.
    """
    if not has_interpreter_lock():
        return False
    frames = sys._current_frames()  # noqa: SLF001 - documented
    try:
        if not _all_others_wait(frames):
            return False
        # A thread that has done anything since stands in another frame: the former live on here.
        look = Call(sys._current_frames, (), frames)  # noqa: SLF001
        return all(
            chain.from_iterable([
                map(operator.eq, starmap(function, [arguments]), [expected])
                for function, arguments, expected in (look, *calls)
            ])
        )
    finally:
        frames.clear()  # they would hold this one, and it them


def _all_others_wait(frames: dict[int, FrameType]) -> bool:
    own = threading.get_ident()
    return all(
        (frame.f_globals.get("__name__"), frame.f_code.co_name) in _WAITING
        for thread, frame in frames.items()
        if thread != own
    )


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:  # that of the listing itself is closed by now
        return ""
