"""Wall and CPU time of the work of one process or thread."""

import time

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds since the last look.

    Args:
        is_for_thread: Whether to read the CPU time of the calling thread alone, not of the
            process and the threads that a dataset may have.
    """

    def __init__(self, *, is_for_thread: bool = False) -> None:
        self._read_cpu = time.thread_time if is_for_thread else time.process_time
        self._began = time.perf_counter()
        self._cpu_began = self._read_cpu()

    def lap(self) -> tuple[float, float]:
        """Return seconds and CPU seconds since the last call."""
        began, cpu_began = self._began, self._cpu_began
        self._began, self._cpu_began = time.perf_counter(), self._read_cpu()
        return self._began - began, self._cpu_began - cpu_began
