"""A thread that decodes images while training has begun."""

import atexit
import threading
import weakref
from typing import Protocol

from fastloader.threads._fork_gate import ForkGate

__all__ = ["BackgroundFill", "Filled"]

_fills: "weakref.WeakSet[BackgroundFill]" = weakref.WeakSet()


class Filled(Protocol):
    """What the thread fills."""

    def fill_next(self, gate: ForkGate) -> bool:
        """Decode some images; False if there are none left."""
        ...


class BackgroundFill:
    """Fills a store step by step until it is full, or nobody holds it any more.

    **Threads:** one, which ends with the store and with the program. It lets forks through
    between two record batches only (`ForkGate`), so that forked workers can use Arrow.
    """

    __slots__ = ("__weakref__", "_is_stopped", "_thread")

    def __init__(self, store: Filled) -> None:
        """Start the thread."""
        self._is_stopped = threading.Event()
        weakref.finalize(store, self._is_stopped.set).atexit = False
        self._thread = threading.Thread(
            target=_run,
            args=(weakref.ref(store), self._is_stopped),
            name="fastloader-fill",  # lives through forks, see fastloader.machine._machine
            daemon=True,  # a program that is done does not wait for images
        )
        _fills.add(self)
        # A daemon thread inside Arrow when the interpreter goes down may bring it down hard.
        atexit.register(_stop_all)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what it is at."""
        self._is_stopped.set()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()


def _run(reference: "weakref.ref[Filled]", is_stopped: threading.Event) -> None:
    gate = ForkGate()
    while not is_stopped.is_set():
        store = reference()
        if store is None:
            return
        with gate:
            try:
                has_more = store.fill_next(gate)
            except Exception:  # noqa: BLE001 - whoever asks for these images gets the error
                return
        del store
        if not has_more:
            return


def _stop_all() -> None:
    for fill in list(_fills):
        fill.stop()
