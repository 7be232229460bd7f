"""What to say when a worker process has ended by itself."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastloader.engine._wording import name_samples
from fastloader.machine._machine import read_available_bytes, read_total_bytes

__all__ = ["describe_death"]

_MEMORY_SIGNALS = {signal.SIGKILL} if hasattr(signal, "SIGKILL") else set()
_CRASH_SIGNALS = {
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
    if hasattr(signal, name)
}


def describe_death(
    pid: int | None, exit_code: int | None, batches: Sequence[Any] | None
) -> str:
    """Say how a worker ended, with which samples, and what the likely cause is.

    Args:
        pid: Of the worker.
        exit_code: As `multiprocessing` gives it: negative for a signal, None if nobody knows.
        batches: Indices of the batches that it had not delivered, the first being made; None if
            it had not started.
    """
    parts = [f"DataLoader worker (pid {pid}) {_how(exit_code)}"]
    if batches is None:
        parts.append(
            "It had not started: it was importing the program, loading the dataset or in "
            "worker_init_fn."
        )
    elif batches:
        parts.append(f"It was making the batch of {name_samples(batches[0])}.")
    parts.append(_likely_cause(exit_code))
    if batches is None and exit_code == 1:
        parts.append(
            "If that says that a process was started within the bootstrapping phase of another, put "
            'what the script does under if __name__ == "__main__": spawn and forkserver import it.'
        )
    return " ".join(parts)


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return (
            "exited unexpectedly. How is not known here, as this process ignores or handles "
            "SIGCHLD: some of its code has taken the exit code."
        )
    if exit_code >= 0:
        return f"exited unexpectedly with exit code {exit_code}."
    try:
        name = signal.strsignal(-exit_code) or signal.Signals(-exit_code).name
    except ValueError:
        name = f"number {-exit_code}"
    return f"is killed by signal: {name}."


def _likely_cause(exit_code: int | None) -> str:
    number = -exit_code if exit_code is not None and exit_code < 0 else 0
    if exit_code is None or number in _MEMORY_SIGNALS:
        return (
            "The likely cause is that memory ran out and the system ended the process: "
            f"{read_available_bytes(Path('/')) / 1e9:.1f} GB can be had now, of "
            f"{read_total_bytes() / 1e9:.1f} GB of the machine. Lower num_workers, "
            "prefetch_factor or batch_size, or keep the dataset in arrays, which workers share, rather than in "
            "lists of Python objects, which they copy."
        )
    if number in _CRASH_SIGNALS:
        return (
            "The likely cause is a crash in native code that the dataset calls: read these "
            "samples with num_workers=0 to see where."
        )
    return (
        "Something in the dataset or in a library ended the process (sys.exit, os._exit, or an "
        "error at its start): its own output, above, may tell."
    )
