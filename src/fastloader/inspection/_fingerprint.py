"""Tells whether an object has changed since workers got their copies of it."""

import threading
import weakref
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from pathlib import PurePath
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.inspection._reach import is_own_code, slots_of, statics_of
from fastloader.typing import LiveDataset

__all__ = ["OwnFingerprint", "fingerprint"]

DEPTH = 10
STATIC_DEPTH = 3  # from a class attribute or global variable
LONGEST = 64  # elements that are looked into; of longer containers their identity counts
MOST_ELEMENTS = 20_000  # of all longer ones together: 2 ms
MOST_PARTS = 2000
PIECE_BYTES = 4096
MOST_PIECES = 64  # of one array, evenly spread
MOST_BYTES = 2 << 20  # of all arrays together: under 1 ms
SCALARS = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (Mapping, list, tuple, AbstractSet, deque)
# Lead to all that the interpreter holds, and to a registry of all finalizers, which loaders make, too.
CLOSED = (ModuleType, threading.Thread, weakref.finalize)


class OwnFingerprint(ABC):
    """Base of objects that know what of them can change, and need not be looked into."""

    __slots__ = ()

    @abstractmethod
    def own_fingerprint(self) -> Hashable:
        """Return something that compares unequal once the object is another for its users."""


def fingerprint(obj: object) -> Any:
    """Return something that compares unequal if `obj` has changed in a way that is cheap to see.

    Attributes are compared by value as far as they are small. So are class attributes and
    global variables that the user's own code names. Of longer containers the identities of
    their elements count, of arrays a checksum: of all of it up to 256 KiB, of 64 pieces of
    larger ones, until 2 MiB were read; of tensors also the count of in-place changes. Plain
    values of a `LiveDataset` are left out: they reach the workers by themselves. What
    has an `OwnFingerprint` is asked for it.

    Args:
        obj: A dataset, say. Nothing else is called on it, and it is not kept alive.
    """
    look = _Look()
    return look.at(obj, DEPTH), look.at_statics()


class _Look:
    """One look at an object and all that it leads to; how much is read in all is bounded."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._owners: deque[object] = deque()
        self._bytes_left = MOST_BYTES
        self._elements_left = MOST_ELEMENTS

    def at(self, obj: object, depth: int) -> Any:
        if isinstance(obj, SCALARS):
            is_long = isinstance(obj, str | bytes) and len(obj) > PIECE_BYTES
            return hash(obj) if is_long else obj
        if isinstance(obj, PurePath | np.generic):
            return type(obj), str(obj)
        is_known = id(obj) in self._seen or isinstance(obj, CLOSED)
        if depth == 0 or is_known or len(self._seen) > MOST_PARTS:
            return id(obj)
        self._seen.add(id(obj))
        return self._at_new(obj, depth)

    def _at_new(self, obj: object, depth: int) -> Any:
        if isinstance(obj, torch.Tensor):
            return self._at_tensor(obj)
        if isinstance(obj, OwnFingerprint):
            return id(obj), obj.own_fingerprint()
        if isinstance(obj, np.ndarray):
            return id(obj), obj.shape, self._checksum(obj)
        if isinstance(obj, CONTAINERS):
            return self._at_container(obj, depth)
        if isinstance(obj, type):
            self._owners.append(obj)
            return id(obj)
        return self._at_function(obj, depth) or self._at_attributes(obj, depth)

    def at_statics(self) -> tuple[Any, ...]:
        """Return what class attributes and global variables are, of all that was met."""
        found = []
        met: set[int] = set()
        while self._owners:
            owner = self._owners.popleft()
            if id(owner) in met:
                continue
            met.add(id(owner))
            for name, value in statics_of(owner):
                if _is_data(value):
                    found.append((name, self.at(value, STATIC_DEPTH)))
        return tuple(found)

    def _at_tensor(self, tensor: torch.Tensor) -> Any:
        is_dense = tensor.layout is torch.strided and not (
            tensor.is_quantized or tensor.is_nested or tensor.is_neg()
        )
        is_plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and is_dense
        if is_plain and tensor.is_shared():  # type: ignore[no-untyped-call]
            return id(tensor)  # workers see what becomes of it
        # Inference tensors do not count their in-place changes.
        version = None if tensor.is_inference() else tensor._version  # noqa: SLF001 - documented
        checksum = None
        is_in_one_piece = is_plain and tensor.is_contiguous() and not tensor.is_conj()
        if is_in_one_piece and 0 < tensor.nbytes <= MOST_PIECES * PIECE_BYTES:
            # It may be changed by an array over it.
            flat = tensor.detach().reshape(-1).view(torch.uint8).numpy()
            checksum = self._checksum_of(flat)
        return id(tensor), version, checksum

    def _checksum(self, array: npt.NDArray[Any]) -> int | None:
        """Return a checksum of an array, None where its memory is not its own.

        What lies in a file would have to be read; what is shared with workers they see anyway.
        """
        memory: Any = array.base
        if isinstance(memory, np.ndarray):
            return self._checksum(memory)
        if memory is not None or array.nbytes == 0:
            return None
        if array.dtype.hasobject:
            return self._hash_of(array.flat)
        return self._checksum_of(np.asarray(array).ravel("K").view(np.uint8))

    def _checksum_of(self, flat: npt.NDArray[np.uint8]) -> int:
        step = max(PIECE_BYTES, flat.size // MOST_PIECES)
        checksum = 0
        for start in range(0, flat.size, step):
            if self._bytes_left <= 0:
                break
            piece = flat[start : start + PIECE_BYTES]
            self._bytes_left -= piece.size
            checksum = zlib.crc32(piece.data, checksum)
        return checksum

    def _at_container(self, obj: Any, depth: int) -> Any:
        if len(obj) > LONGEST:
            items = obj.items() if isinstance(obj, Mapping) else (obj,)
            parts = (part for item in items for part in item)
            return id(obj), len(obj), self._hash_of(parts)
        if isinstance(obj, Mapping):
            return type(obj), tuple(
                (self.at(k, 1), self.at(v, depth - 1)) for k, v in obj.items()
            )
        if isinstance(obj, AbstractSet):
            return type(obj), frozenset(_identity(element) for element in obj)
        return type(obj), tuple(self.at(element, depth - 1) for element in obj)

    def _at_function(self, obj: object, depth: int) -> Any:
        """Return what a callable that carries objects along carries, None for all else."""
        if isinstance(obj, MethodType):
            return self.at(obj.__func__, depth), self.at(obj.__self__, depth - 1)
        if isinstance(obj, partial):
            return tuple(
                self.at(part, depth - 1) for part in (obj.func, obj.args, obj.keywords)
            )
        if isinstance(obj, FunctionType):
            self._owners.append(obj)
            cells = obj.__closure__ or ()
            return id(obj), tuple(self._at_cell(cell, depth - 1) for cell in cells)
        return None

    def _at_cell(self, cell: CellType, depth: int) -> Any:
        try:
            return self.at(cell.cell_contents, depth)
        except ValueError:  # a variable without a value yet
            return None

    def _at_attributes(self, obj: object, depth: int) -> Any:
        self._owners.append(type(obj))
        attributes = getattr(obj, "__dict__", {})
        if "_mgr" in attributes:  # a table of pandas: its columns by kind
            arrays = tuple(getattr(attributes["_mgr"], "arrays", ()))
            return id(obj), tuple(self.at(array, 1) for array in arrays)
        slots = slots_of(obj) if is_own_code(type(obj)) else ()  # libraries cache in theirs
        # By name first, as checking a protocol takes longer than all the rest, and of the class,
        # as asking an object may run code of its own.
        is_live = hasattr(type(obj), "live_state") and isinstance(obj, LiveDataset)
        values = tuple(
            (name, self.at(value, depth - 1))
            for name, value in (*attributes.items(), *slots)
            if not (is_live and isinstance(value, SCALARS))
        )
        return id(obj), type(obj), values

    def _hash_of(self, elements: Iterable[Any]) -> int:
        looked_at = [_identity(element) for element in islice(elements, self._elements_left)]
        self._elements_left -= len(looked_at)
        return hash(tuple(looked_at))


def _identity(element: Any) -> Any:
    """Return a plain value as it is, all else by identity."""
    return element if type(element) in SCALARS else id(element)


def _is_data(value: object) -> bool:
    """Tell whether a class attribute or global variable is the user's own data or code."""
    if isinstance(
        value, (*SCALARS, *CONTAINERS, np.ndarray, torch.Tensor, partial, MethodType)
    ):
        return True
    return is_own_code(value if isinstance(value, FunctionType | type) else type(value))
