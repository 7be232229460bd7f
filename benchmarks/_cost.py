"""What a run costs: CPU seconds, page faults and memory of a process and its descendants."""

import threading
from types import TracebackType
from typing import Self

from fastloader.machine._process_tree import TreeCost, tree_cost, tree_memory_bytes

__all__ = ["PeakMemory", "TreeCost", "tree_cost", "tree_memory_bytes"]


class PeakMemory:
    """Watches the memory of a process tree from a thread while a block runs.

    Reading PSS walks page tables and takes locks of the watched process, so never time a run
    that is being watched.
    """

    def __init__(self, pid: int, *, period_seconds: float = 0.02) -> None:
        """Prepare to watch the tree below `pid`, once per `period_seconds`."""
        self.peak_bytes = 0
        self._pid = pid
        self._period_seconds = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_memory_bytes(self._pid))
            if self._stop.wait(self._period_seconds):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
