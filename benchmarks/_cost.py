"""What a run costs: CPU seconds, page faults and memory of a process and its descendants."""

import re
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from fastloader.machine._process_tree import TreeCost, tree_cost, tree_memory_bytes

__all__ = ["PeakMemory", "TreeCost", "tree_cost", "tree_data_bytes", "tree_memory_bytes"]


def tree_data_bytes() -> int:
    """Return the memory of this process and its descendants but for that of files, shared pages once.

    Pages of files, which are those of libraries, are shared with all processes of the machine: how many of
    these there are changes how much of them counts for one. Linux only.
    """
    here = psutil.Process()
    total_bytes = 0
    for process in (here, *here.children(recursive=True)):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            kinds = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
            total_bytes += 1024 * sum(
                map(int, re.findall(r"Pss_(?:Anon|Shmem):\s+(\d+)", kinds))
            )
    return total_bytes


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
