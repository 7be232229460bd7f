"""Names that torch keeps private and this package needs, all in one place.

Each has a test in `tests/test_torch_internals.py` that says what is relied on.
"""

from collections.abc import Iterable
from typing import Any, cast

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import worker as _worker
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torch.utils.data.dataloader import _BaseDataLoaderIter

__all__ = [
    "BaseIterator",
    "WatchedWorkerInfo",
    "collate",
    "default_collate_fn_map",
    "index_sampler",
    "reported_length",
    "set_worker_info",
]

BaseIterator = _BaseDataLoaderIter
"""What `iter(loader)` must be: Lightning and Composer ask for the type."""


class WatchedWorkerInfo(_worker.WorkerInfo):
    """What `get_worker_info` gives in our workers: torch's, and it knows whether it was read.

    A dataset that splits its samples over workers must read `id` or `num_workers`.
    """

    was_asked: bool

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.forget_asked()

    def forget_asked(self) -> None:
        """Set `was_asked` to False."""
        object.__setattr__(self, "was_asked", False)  # the class is frozen

    def __getattribute__(self, name: str) -> Any:
        if name in {"id", "num_workers"}:
            object.__setattr__(self, "was_asked", True)
        return super().__getattribute__(name)


def set_worker_info(info: WatchedWorkerInfo) -> None:
    """Let `torch.utils.data.get_worker_info` return `info` in this process."""
    _worker._worker_info = info  # noqa: SLF001
    assert get_worker_info() is info  # noqa: S101 - else datasets would not see it


def index_sampler(loader: DataLoader[Any]) -> Iterable[Any]:
    """Return what the loader reads: its batch sampler, or its sampler without batches."""
    return cast("Iterable[Any]", loader._index_sampler)  # noqa: SLF001


def reported_length(loader: DataLoader[Any]) -> int | None:
    """Return what `len` of an iterable dataset's loader has said, if it was asked."""
    return loader._IterableDataset_len_called  # noqa: SLF001
