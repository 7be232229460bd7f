"""Names that torch keeps private and this package needs, all in one place.

Each has a test in `tests/test_torch_internals.py` that says what is relied on.
"""

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import worker as _worker
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

__all__ = [
    "BaseIterator",
    "InProcessIterator",
    "WatchedWorkerInfo",
    "WorkerIterator",
    "collate",
    "default_collate_fn_map",
    "index_sampler",
    "pin_memory",
    "set_worker_info",
    "view_of",
]

BaseIterator = _BaseDataLoaderIter
"""What `iter(loader)` must be: Lightning and Composer ask for the type."""

InProcessIterator = _SingleProcessDataLoaderIter
WorkerIterator = _MultiProcessingDataLoaderIter


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


def view_of(
    loader: DataLoader[Any],
    indices: Iterable[Any],
    generator: torch.Generator | None,
    **options: Any,
) -> DataLoader[Any]:
    """Return the loader as torch's iterators should see it for one epoch.

    Torch's iterators take everything from the loader's attributes, which must stay what the
    caller gave; so they get a shallow copy with some replaced.

    Args:
        loader: The loader.
        indices: What to read instead of the batch sampler (or of the sampler, without one).
        generator: Where the base seed comes from.
        **options: Other attributes.
    """
    view = copy.copy(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    # Past __setattr__, which keeps users from changing these after construction.
    view.__dict__.update({name: indices, "generator": generator, **options})
    return view
