"""Pickle what travels to a worker, by value where it must be, or say what cannot travel.

Four things differ from `pickle.dumps`:

- What the other process cannot import (lambdas, closures, local classes, classes typed into a
  notebook) travels by value, through cloudpickle.
- Large arrays and tensors can be kept out of the stream, so that they are copied once and not
  once per worker (pickle protocol 5, PEP 574). Tensors travel as their bytes: `torch`'s own
  reducers for `multiprocessing` would move them, and whatever makes a tensor while it is pickled,
  as a `torch.Generator` does, into shared memory that a later worker no longer finds.
- Arrays over mapped files travel as the name of the file.
- What only a starting process can inherit (locks, queues, shared values, tensors in shared
  memory) is put aside, to be given to the process as an argument.
"""

import functools
import io
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle
import numpy as np
import torch

from fastloader.errors import UnpicklableError
from fastloader.pickling._main_script import is_in_main, is_in_main_of_workers
from fastloader.pickling._mapped_arrays import reduce_mapped
from fastloader.pickling._sent_classes import numbered
from fastloader.pickling._unpicklable import find_unpicklable

__all__ = [
    "ByReferencePickler",
    "ByValuePickler",
    "dumps_for_worker",
    "loads_from_parent",
    "must_be_inherited",
]

_PROTOCOL = 5  # the first with buffers out of band

_LARGE_BYTES = 1 << 16
"""Size from which a buffer is worth a place of its own."""

_INHERITED_MODULES = frozenset({
    "multiprocessing.connection",
    "multiprocessing.queues",
    "multiprocessing.sharedctypes",
    "multiprocessing.synchronize",
    "socket",
})


class _NotImportableError(pickle.PicklingError):
    """A class or function of `__main__` that the other process will not find there."""


class _Loading(threading.local):
    inherited: Sequence[object] = ()


_loading = _Loading()


def _reduce_system_random(generator: random.SystemRandom) -> Any:
    return type(generator), ()  # pickle would ask for its state, and it has none


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    np.ndarray: reduce_mapped,
    np.memmap: reduce_mapped,
    random.SystemRandom: _reduce_system_random,
}


class _Reducers:
    """What both picklers do with tensors and inherited objects."""

    def __init__(
        self,
        file: io.BytesIO,
        *,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
        inherited: list[object] | None = None,
    ) -> None:
        super().__init__(file, _PROTOCOL, buffer_callback=buffer_callback)  # type: ignore[call-arg]
        self._inherited = inherited
        self._inherited_by_id: dict[int, int] = {}

    def _reduce(self, obj: object) -> Any:
        if self._inherited is not None and must_be_inherited(obj):
            number = self._inherited_by_id.setdefault(id(obj), len(self._inherited))
            if number == len(self._inherited):
                self._inherited.append(obj)
            return _take_inherited, (number,)
        if (reduce := _REDUCERS.get(type(obj))) is not None:
            return reduce(obj)
        if type(obj) is torch.Tensor and obj.is_nested and obj.layout is torch.strided:
            return torch.nested.as_nested_tensor, (list(obj.unbind()),)
        if type(obj) is torch.Tensor and _is_plain(obj):
            where = (obj.storage_offset(), tuple(obj.shape), obj.stride())
            # Views of one storage stay views of one storage: pickle remembers the storage.
            return _tensor_on_storage, (obj.untyped_storage(), obj.dtype, *where)
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            data: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(obj).numpy()
            return _storage_from_buffer, (pickle.PickleBuffer(data),)
        return NotImplemented


class ByReferencePickler(_Reducers, pickle.Pickler):
    """Plain pickle that refuses what the other process could not import.

    Args:
        file: Where the bytes go.
        buffer_callback: As for `pickle.Pickler`: is given each large buffer, and keeps it out
            of the stream by returning something false.
        inherited: Takes the objects that only a starting process can inherit; without it they
            are pickled as `multiprocessing` does, which fails unless a process is starting.
    """

    def reducer_override(self, obj: object, /) -> Any:
        """Return how `obj` travels, or NotImplemented for pickle's own way.

        Args:
            obj: Anything but the built-in containers and scalars.

        Raises:
            _NotImportableError: If `obj` stands in a `__main__` that workers do not have.
        """
        if is_in_main(obj) and not is_in_main_of_workers(obj):
            name = getattr(obj, "__qualname__", obj)
            raise _NotImportableError(f"workers cannot import {name} from __main__")
        return self._reduce(obj)


class ByValuePickler(_Reducers, cloudpickle.Pickler):  # type: ignore[misc]
    """Cloudpickle: classes and functions that cannot be imported travel by value.

    Args:
        file: Where the bytes go.
        buffer_callback: As for `ByReferencePickler`.
        inherited: As for `ByReferencePickler`.
    """

    def reducer_override(self, obj: object, /) -> Any:
        """Return how `obj` travels, or NotImplemented for pickle's own way.

        Args:
            obj: Anything but the built-in containers and scalars.
        """
        if is_in_main_of_workers(obj):
            return NotImplemented  # by reference: its globals need not travel
        reduced = self._reduce(obj)
        if reduced is NotImplemented:
            reduced = super().reducer_override(obj)
            if (
                isinstance(obj, type)
                and obj.__module__ != "builtins"
                and reduced is not NotImplemented
            ):
                return numbered(obj, reduced)
        return reduced


def dumps_for_worker(
    obj: object,
    name: str = "dataset",
    *,
    buffers: list[pickle.PickleBuffer] | None = None,
    inherited: list[object] | None = None,
) -> bytes:
    """Pickle an object for a worker process: plainly if that will do, else by value.

    Args:
        obj: A dataset, a collate function, a batch.
        name: What to call `obj` in an error, for instance `"collate_fn"`.
        buffers: Takes the buffers of arrays and tensors of at least 64 KiB, which then
            are not in the result. None keeps them in it.
        inherited: Takes objects that must be given to the process when it starts. None leaves
            them in the result, which works only while a process is starting.

    Returns:
        Bytes for `loads_from_parent`, or for `pickle.loads` if both lists are None or empty.

    Raises:
        UnpicklableError: If something in `obj` cannot be pickled; the message has its path.
    """
    for pickler in (ByReferencePickler, ByValuePickler):
        kept: list[pickle.PickleBuffer] = []
        aside: list[object] = []
        try:
            data = _dumps(
                pickler,
                obj,
                None if buffers is None else _keep_large(kept),
                None if inherited is None else aside,
            )
        except Exception as error:  # noqa: BLE001 - any __reduce__ or __getstate__ may raise
            problem = error
            continue
        if buffers is not None:
            buffers.extend(kept)
        if inherited is not None:
            inherited.extend(aside)
        return data
    can_travel = functools.partial(_can_travel, inherited is not None)
    path, culprit = find_unpicklable(obj, name, can_travel)
    raise UnpicklableError(
        f"{name} must be sent to a worker process, but {path} (a {_type_name(culprit)}) cannot "
        f"be pickled: {problem}. Make it on first use in the worker, or leave it out in "
        f"__getstate__; with num_workers=0 nothing is sent."
    ) from problem


def loads_from_parent(
    data: bytes | memoryview,
    *,
    buffers: Iterable[Any] = (),
    inherited: Sequence[object] = (),
) -> Any:
    """Undo `dumps_for_worker`.

    Args:
        data: What `dumps_for_worker` returned.
        buffers: The buffers it took out, in the same order. Arrays and tensors are made over
            them without a copy; a read-only buffer gives read-only arrays, and is copied for
            tensors, which have no such thing.
        inherited: The objects it put aside, in the same order.
    """
    previous = _loading.inherited
    _loading.inherited = inherited
    try:
        return pickle.loads(data, buffers=buffers)  # noqa: S301 - our own parent wrote it
    finally:
        _loading.inherited = previous


def must_be_inherited(obj: object) -> bool:
    """Tell whether only a starting process can take `obj` over and stay connected to it."""
    if isinstance(obj, torch.Tensor):
        # Always true on an accelerator, where torch sends a handle of the same memory.
        return obj.layout is torch.strided and bool(obj.is_shared())  # type: ignore[no-untyped-call]
    if isinstance(obj, type):
        return False
    modules = {base.__module__ for base in type(obj).__mro__}
    if "_ctypes" in modules:
        # Types of shared ctypes objects are ordinary ones: multiprocessing registers each.
        reducer = ForkingPickler(io.BytesIO()).dispatch_table.get(type(obj))
        return reducer is not None and reducer.__module__ == "multiprocessing.sharedctypes"
    return not _INHERITED_MODULES.isdisjoint(modules)


def _dumps(
    pickler: type[ByReferencePickler | ByValuePickler],
    obj: object,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None,
    inherited: list[object] | None,
) -> bytes:
    file = io.BytesIO()
    pickler(file, buffer_callback=buffer_callback, inherited=inherited).dump(obj)
    return file.getvalue()


def _can_travel(may_inherit: bool, obj: object) -> bool:
    try:
        _dumps(ByValuePickler, obj, lambda _buffer: None, [] if may_inherit else None)
    except Exception:  # noqa: BLE001 - any __reduce__ or __getstate__ may raise
        return False
    return True


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether storage, dtype and strides say all there is to say about a tensor."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        and not (tensor.is_quantized or vars(tensor))
    )


def _tensor_on_storage(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=storage.device).set_(
        storage, offset, shape, stride
    )


def _storage_from_buffer(buffer: Any) -> torch.UntypedStorage:
    view = memoryview(buffer)
    if view.nbytes == 0:  # torch.frombuffer refuses these
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    writable = bytearray(view) if view.readonly else view
    return torch.frombuffer(writable, dtype=torch.uint8).untyped_storage()


def _take_inherited(number: int) -> object:
    return _loading.inherited[number]


def _keep_large(kept: list[pickle.PickleBuffer]) -> Callable[[pickle.PickleBuffer], bool]:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        is_small = buffer.raw().nbytes < _LARGE_BYTES
        if not is_small:
            kept.append(buffer)
        return is_small

    return keep


def _type_name(obj: object) -> str:
    kind = type(obj)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"
