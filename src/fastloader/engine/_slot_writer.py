"""The parts of a slot, handed out while a batch is made and packed."""

import ctypes
from math import prod
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any, NamedTuple

import torch

from fastloader._torch_internals import count_storage_users
from fastloader.engine._unpacking import DTYPE_CODES, tensor_at, tensor_over
from fastloader.shm._mapping_over import make_own
from fastloader.typing import Batch

__all__ = ["SlotWriter"]

ALIGNMENT_BYTES = 64

_UNSHARED = 2  # references to what one container holds, as `getrefcount` counts them

_PLAIN = frozenset({dict, list, torch.Tensor})
_TENSOR = attrgetter("tensor")


class _Made:
    """A tensor that was made in a slot, and what its place in the batch is unpickled from."""

    __slots__ = (
        "address",
        "after_bytes",
        "before_bytes",
        "dtype",
        "reduced",
        "shape",
        "tensor",
    )

    def __init__(
        self, tensor: torch.Tensor, base: int, offset: int, before_bytes: int, after_bytes: int
    ) -> None:
        self.tensor = tensor
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self.address = base + offset
        self.before_bytes = before_bytes  # of the slot that were taken before and after
        self.after_bytes = after_bytes
        self.reduced = tensor_at, (offset, DTYPE_CODES[tensor.dtype], tuple(tensor.shape))


class _Packed(NamedTuple):
    """A batch of tensors that were all made in the slot, as it was packed."""

    kind: type
    keys: tuple[Any, ...]
    made: list[_Made]
    body: bytes


class SlotWriter:
    """Hands out parts of a slot, one after the other, while a batch is made and packed.

    A batch that is larger than the slot is counted to its end, so that `needed_bytes` tells the
    size of the slot that would hold it.

    **Processes:** in a worker, one for each slot that it writes to now and then.
    """

    def __init__(self, slot: memoryview | None) -> None:
        self._slot = slot
        self._size_bytes = 0 if slot is None else len(slot)
        self.address = 0 if slot is None else _address_of(slot)
        self.needed_bytes = 0
        self._placed: dict[tuple[int, int], int] = {}
        # Memory that found no room, by address and size.
        self._counted: set[tuple[int, int]] = set()
        self._made: list[_Made] = []  # in their order
        self._by_identity: dict[int, _Made] | None = None  # what they hold keeps that theirs
        self._sent: list[_Made] = []  # as they were made
        self._earlier: list[_Made] = []  # the same, of the batch before
        self._packed: _Packed | None = None

    def begin(self) -> None:
        """Begin another batch in the slot, over the last one."""
        self.needed_bytes = 0
        self._placed.clear()
        self._counted.clear()
        self._by_identity = None
        self._earlier, self._made, self._sent = self._sent, [], []

    @property
    def fits(self) -> bool:
        """True while everything asked for has found room."""
        return self.needed_bytes <= self._size_bytes

    def allocate(self, size_bytes: int) -> int | None:
        """Return the offset of free bytes, or None where there are not enough."""
        offset = -(-self.needed_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.needed_bytes = offset + size_bytes
        return offset if self.needed_bytes <= self._size_bytes else None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor in the slot, or elsewhere where there is no room."""
        place = len(self._made)
        if place < len(self._earlier):
            # Batches are alike: a tensor that nobody has kept serves once more.
            made = self._earlier[place]
            if (
                made.before_bytes == self.needed_bytes
                and made.shape == shape
                and made.dtype is dtype
                and getrefcount(made.tensor) <= _UNSHARED
            ):
                self.needed_bytes = made.after_bytes
                self._made.append(made)
                return made.tensor
        count = prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        before_bytes = self.needed_bytes
        offset = self.allocate(count * dtype.itemsize)
        if offset is None:
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
            # To count it again when it is packed would make slots twice as large as batches.
            self._counted.add((tensor.data_ptr(), tensor.nbytes))
            return tensor
        tensor = tensor_over(self._slot, offset, dtype, shape)
        self._made.append(_Made(tensor, self.address, offset, before_bytes, self.needed_bytes))
        return tensor

    def reduced(self, obj: Any) -> tuple[Any, ...] | None:
        """Return what a tensor from `empty` is unpickled from, if it still is as it was made."""
        if self._by_identity is None:
            self._by_identity = {id(made.tensor): made for made in self._made}
        made = self._by_identity.get(id(obj))
        if made is None:
            return None
        tensor = made.tensor
        if (
            tensor.data_ptr() != made.address
            or tensor.shape != made.shape
            or tensor.dtype is not made.dtype
            or tensor.requires_grad
            or not tensor.is_contiguous()
            or vars(tensor)
        ):
            return None
        self._sent.append(made)
        return made.reduced

    def recall(self, batch: Batch) -> bytes | None:
        """Return a batch as it was packed the last time, if nothing but its values is new.

        Args:
            batch: Of tensors that are as they were made.
        """
        packed, made = self._packed, self._made
        # Lists of parts compare by identity.
        if packed is None or type(batch) is not packed.kind or made != packed.made:
            return None
        if _keys_of(batch) != packed.keys or not self._consists_of_made(batch):
            return None
        self._sent = made
        return packed.body

    def remember(self, batch: Batch, body: bytes) -> None:
        """Note how a batch was packed, for `recall`.

        Args:
            batch: Of tensors that are as they were made, or anything else.
            body: From `pack`.
        """
        self._packed = None
        if type(batch) in _PLAIN and self.fits and self._consists_of_made(batch):
            self._sent = self._made
            self._packed = _Packed(type(batch), _keys_of(batch), self._made, body)

    def _consists_of_made(self, batch: Any) -> bool:
        made, kind = self._made, type(batch)
        if kind is torch.Tensor:
            return len(made) == 1 and made[0].tensor is batch
        values = batch.values() if kind is dict else batch
        return len(batch) == len(made) and all(map(is_, values, map(_TENSOR, made)))

    def is_kept(self) -> bool:
        """Return whether somebody looks at what was made in the slot, once its batch is packed.

        A dataset may make samples by `default_collate` and keep them, a transform the batch before.
        """
        return self._sent is not self._made and any(map(_is_kept, self._made))

    def keep(self) -> None:
        """Leave what was made to those who look at it, out of the slot: this writer is of no use any more.

        Raises:
            SharedMemoryError: If the system gives no memory for that.
        """
        make_own(self.address, self._made[-1].after_bytes)

    def place_memory(self, address: int, size_bytes: int) -> int | None:
        """Return the offset of memory that lies in the slot already, else copy it there.

        Memory that was placed before is found again, so arrays that share memory in the batch
        share it after the journey. So it must not be freed before all is packed.
        """
        if self.address <= address < self.address + self._size_bytes:
            return address - self.address
        if (address, size_bytes) in self._counted:
            return None
        known = self._placed.get((address, size_bytes))
        if known is not None:
            return known
        offset = self.allocate(size_bytes)
        if offset is not None:
            ctypes.memmove(self.address + offset, address, size_bytes)
            self._placed[address, size_bytes] = offset
        return offset


def _keys_of(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if type(batch) is dict else ()


def _is_kept(made: _Made) -> bool:
    return getrefcount(made.tensor) > _UNSHARED or count_storage_users(made.tensor) > 1


def _address_of(slot: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(slot))
