"""Names that torch keeps private and this package needs, all in one place.

Each has a test in `tests/test_torch_internals.py` that says what is relied on.
"""

from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as _worker
from torch.utils.data._utils.collate import collate, default_collate_fn_map

__all__ = ["WatchedWorkerInfo", "collate", "default_collate_fn_map", "set_worker_info"]


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
