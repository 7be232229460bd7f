"""Writes the images of one batch while the next one is decoded."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["WriteBatch", "WriteBehind"]

WriteBatch: TypeAlias = Callable[[Any, npt.NDArray[np.int64]], None]
"""Takes a record batch, or a column of one, and the numbers of its rows."""


class WriteBehind:
    """Calls a function for one batch while the next one is decoded.

    Taking memory for the pixels costs about a third of decoding them, and both leave the
    interpreter free. One batch waits at most, so that peak memory stays low.

    **Threads:** one if asked for; it ends with the block.

    Args:
        write_batch: What to call; an error of it is raised at a later call or at the end.
        in_thread: Whether there is a core for it; otherwise it is called at once.
    """

    def __init__(self, write_batch: WriteBatch, *, in_thread: bool) -> None:
        self._write_batch = write_batch
        self._pool = ThreadPoolExecutor(1, "fastloader-parquet") if in_thread else None
        self._pending: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, batch: Any, row_numbers: npt.NDArray[np.int64]) -> None:
        if self._pool is None:
            self._write_batch(batch, row_numbers)
            return
        if self._pending is not None:
            self._pending.result()
        self._pending = self._pool.submit(self._write_batch, batch, row_numbers)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        self._pool.shutdown(cancel_futures=kind is not None)
        if self._pending is not None and kind is None:
            self._pending.result()
