"""Names that torch keeps private and this package needs, all in one place.

Each has a test in `tests/test_torch_internals.py` that says what is relied on.
"""

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import worker as _worker
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torch.utils.data.dataloader import _BaseDataLoaderIter

__all__ = [
    "BaseIterator",
    "WatchedWorkerInfo",
    "batches_under_way",
    "collate",
    "count_storage_users",
    "default_collate_fn_map",
    "draws_on_cpu_by_default",
    "forget_scaled_step",
    "index_sampler",
    "is_lost_by_fork",
    "not_compiled",
    "places_of_draws",
    "reads_otherwise",
    "registered_tensors",
    "reported_length",
    "set_worker_info",
    "stream_teller",
    "worker_info_of_thread",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_compiled(function: _Function) -> _Function:
    """Let `torch.compile` leave a function alone, with all that it calls.

    It leaves torch's own loader alone by the place of its files, and would trace ours, which it
    does not understand. `torch.compiler.disable` does the same, but imports the whole compiler.

    Args:
        function: Written in Python.
    """
    skip = eval_frame._FrameAction.SKIP  # noqa: SLF001
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # noqa: SLF001
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001
    return function


BaseIterator = _BaseDataLoaderIter
"""What `iter(loader)` must be: Lightning and Composer ask for the type."""


_count_modes: Callable[[], int] = torch._C._len_torch_function_stack  # noqa: SLF001


def draws_on_cpu_by_default() -> bool:
    """Tell whether torch's default device is the CPU.

    Where it is another one, a mode is in force, by ``with torch.device()`` as by
    `torch.set_default_device`. That there is none is told in a hundredth of the time that
    `torch.get_default_device` takes, whose first call also imports a module.
    """
    return not _count_modes() or torch.get_default_device().type == "cpu"


_count_uses: Callable[[int], int] = torch._C._storage_Use_Count  # noqa: SLF001


def count_storage_users(tensor: torch.Tensor) -> int:
    """Return how many tensors and arrays look at the memory of a tensor, itself included."""
    storage = tensor.untyped_storage()
    return _count_uses(storage._cdata) - 1  # noqa: SLF001 - `storage` is one


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


class _OfThread(threading.local):
    info: WatchedWorkerInfo | None = None

    def asked(self) -> WatchedWorkerInfo | None:
        # Torch's collate asks whether to put the batch into shared memory, which threads do not need.
        asker = sys._getframe(2).f_globals.get("__name__")  # noqa: SLF001 - of whoever calls get_worker_info
        return None if asker == collate.__module__ else self.info


_of_thread = _OfThread()


def _get_worker_info() -> Any:
    # Runs with the global names of torch's module.
    return _fastloader_of_thread.asked() or _worker_info  # type: ignore[name-defined]  # noqa: F821


@contextmanager
def worker_info_of_thread(info: WatchedWorkerInfo) -> Iterator[None]:
    """Let `torch.utils.data.get_worker_info` return `info` in this thread, in the block.

    Torch has one global for the whole process, which the function reads. Its code is replaced,
    not the function: datasets have imported that by name.
    """
    _worker._fastloader_of_thread = _of_thread  # type: ignore[attr-defined]  # noqa: SLF001
    get_worker_info.__code__ = _get_worker_info.__code__
    _of_thread.info = info
    try:
        assert get_worker_info() is info  # noqa: S101 - else datasets would not see it
        yield
    finally:
        _of_thread.info = None


def is_lost_by_fork() -> bool:
    """Tell whether this process is the forked child of one that used CUDA, and so cannot: not for pinned memory either."""
    return torch.cuda._is_in_bad_fork()  # noqa: SLF001


def stream_teller(device: torch.device) -> Callable[[], Any]:
    """Return a function that tells which stream is current on a device.

    What it returns can be compared, no more; on CUDA it takes a tenth of the time that making a
    stream object takes.

    Args:
        device: An accelerator, with its index.
    """
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001
    if device.type == "cuda" and raw is not None:
        return partial(raw, device.index)
    return partial(torch.get_device_module(device).current_stream, device)


def batches_under_way(iterator: Any) -> tuple[int, int]:
    """Return how many batches one of torch's iterators waits for, and how many of them are made.

    Those that a thread copies to page-locked memory count as made when that is done.
    """
    tasks = tuple(getattr(iterator, "_task_info", {}).values())
    num_taken = sum(len(task) == 2 for task in tasks)  # out of order
    num_sent = iterator._data_queue.qsize() if tasks else 0  # noqa: SLF001
    return len(tasks), min(len(tasks), num_taken + num_sent)


def index_sampler(loader: DataLoader[Any]) -> Iterable[Any]:
    """Return what the loader reads: its batch sampler, or its sampler without batches."""
    sampler: Iterable[Any] = loader._index_sampler  # noqa: SLF001
    return sampler


def reads_otherwise(cls: type[DataLoader[Any]]) -> bool:
    """Return whether loaders of a class read something else than their samplers, or in another way."""
    return any(
        getattr(cls, name) is not getattr(DataLoader, name)
        for name in ("_index_sampler", "_auto_collation")
    )


def reported_length(loader: DataLoader[Any]) -> int | None:
    """Return what `len` of an iterable dataset's loader has said, if it was asked."""
    return loader._IterableDataset_len_called  # noqa: SLF001


def registered_tensors(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and buffers that a module itself has, by name: its own tables.

    Its public methods leave out those that are None, and tell nothing of which is which name's.
    """
    return module._parameters, module._buffers  # noqa: SLF001


def forget_scaled_step(scaler: torch.amp.GradScaler) -> None:
    """Let a gradient scaler begin a step anew, where an error has ended one before `update`."""
    scaler._per_optimizer_states.clear()  # noqa: SLF001


def places_of_draws(generator: torch.Generator) -> list[tuple[int, int]]:
    """Return where in memory a generator for the CPU has what each of its draws changes.

    Its state has 5 kB, and takes a tensor to read.

    Args:
        generator: Which must outlive the use of the places.

    Returns:
        Addresses, and how many bytes from there; empty if they are not known.
    """
    address = generator._cdata  # type: ignore[attr-defined]  # noqa: SLF001 - not in its stubs
    return [(address + offset, num_bytes) for offset, num_bytes in _offsets_of_draws()]


_MARK_BYTES = 32
"""At both ends of the 624 words of the generator's Mersenne Twister (struct CPUGeneratorImpl of
ATen/CPUGeneratorImpl.h): before them stands the place in them, after them the second of a pair of normal draws."""


@lru_cache(maxsize=1)
def _offsets_of_draws() -> list[tuple[int, int]]:
    generator = torch.Generator().manual_seed(1)
    words = generator.get_state()[24:].view(torch.int64)[:624].int().numpy().tobytes()
    address = generator._cdata  # type: ignore[attr-defined]  # noqa: SLF001 - not in its stubs
    offset = ctypes.string_at(address, 256).find(words[:_MARK_BYTES])
    if offset < _MARK_BYTES:
        return []
    places = [(offset - _MARK_BYTES, 2 * _MARK_BYTES), (offset + len(words), _MARK_BYTES)]
    # The second of a pair changes no word.
    number, marks = torch.empty((), dtype=torch.float64, device="cpu"), set()
    for _ in range(4):
        marks.add(tuple(ctypes.string_at(address + start, size) for start, size in places))
        number.normal_(generator=generator)
    return places if len(marks) == 4 else []
