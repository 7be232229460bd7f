"""Whether threads may read a dataset: found out in a process that may crash."""

from typing import Any

from torch.utils.data import Dataset

from fastloader._loader import FastLoader
from fastloader.testing._dataset import check_threads

__all__ = ["find_thread_obstacle"]

_READING_SHARE = 0.2
"""Of the time, for what one thread reads first; several then take about as long at most."""


def find_thread_obstacle(dataset: Any, seconds: float) -> str | None:
    """Read samples of a dataset by several threads at once, in a worker process.

    Args:
        dataset: Map-style dataset.
        seconds: How long it may take.

    Returns:
        What went wrong; None if the threads got what one thread alone gets.
    """
    loader: FastLoader[str] = FastLoader(
        _Checked(dataset, _READING_SHARE * seconds),
        batch_size=None,
        num_workers=1,
        persistent_workers=False,
        timeout=seconds,
    )
    try:
        [told] = loader
    except Exception as error:  # noqa: BLE001 - whatever it is, threads are out of the question
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return told or None


class _Checked(Dataset[str]):
    """A single sample: what is wrong with reading a dataset in threads, if anything."""

    def __init__(self, dataset: Any, reading_seconds: float) -> None:
        self._dataset = dataset
        self._reading_seconds = reading_seconds

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: int) -> str:
        check = check_threads(self._dataset, reading_seconds=self._reading_seconds)
        return "" if check.outcome == "ok" else check.detail
