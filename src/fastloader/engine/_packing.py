"""A batch as a slot full of arrays and a small pickle that says where each array lies."""

import ctypes
import io
import pickle
import threading
from collections.abc import Callable
from math import prod
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastloader._arrays import TORCH_DTYPES
from fastloader.typing import Batch

__all__ = ["SlotWriter", "pack", "tensor_over", "unpack"]

ALIGNMENT_BYTES = 64
SMALL_ARRAY_BYTES = 1024  # NumPy arrays up to this stay in the pickle

_UNSHARED = 2  # references to what one container holds, as `getrefcount` counts them

_DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_NUMPY_DTYPES = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}


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
        self.reduced = _tensor_at, (offset, _DTYPE_CODES[tensor.dtype], tuple(tensor.shape))


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
        self._made: list[_Made] = []  # in their order
        self._by_identity: dict[int, _Made] | None = None  # what they hold keeps that theirs
        self._sent: list[_Made] = []  # as they were made
        self._earlier: list[_Made] = []  # the same, of the batch before
        self._packed: _Packed | None = None

    def begin(self) -> None:
        """Begin another batch in the slot, over the last one."""
        self.needed_bytes = 0
        self._placed.clear()
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

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return an uninitialised tensor in the slot, or None where there is no room."""
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
            return None
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
        is_plain = type(batch) in _PLAIN and self.fits and self._consists_of_made(batch)
        self._packed = (
            _Packed(type(batch), _keys_of(batch), self._made, body) if is_plain else None
        )

    def _consists_of_made(self, batch: Any) -> bool:
        made, kind = self._made, type(batch)
        if kind is torch.Tensor:
            return len(made) == 1 and made[0].tensor is batch
        values = batch.values() if kind is dict else batch
        return len(batch) == len(made) and all(map(is_, values, map(_TENSOR, made)))

    def place_memory(self, address: int, size_bytes: int) -> int | None:
        """Return the offset of memory that lies in the slot already, else copy it there.

        Memory that was placed before is found again, so arrays that share memory in the batch
        share it after the journey. So it must not be freed before all is packed.
        """
        if self.address <= address < self.address + self._size_bytes:
            return address - self.address
        known = self._placed.get((address, size_bytes))
        if known is not None:
            return known
        offset = self.allocate(size_bytes)
        if offset is not None:
            ctypes.memmove(self.address + offset, address, size_bytes)
            self._placed[address, size_bytes] = offset
        return offset


def pack(batch: Batch, writer: SlotWriter, *, is_as_made: bool = False) -> bytes:
    """Pickle a batch whose tensors and arrays lie in the slot, or are copied there.

    Where `writer.fits` is False afterwards the result is useless: pack again with a larger
    slot.

    Args:
        batch: Any nesting; objects with tensors inside are pickled as usual.
        writer: Of the slot that goes with the reply.
        is_as_made: Whether nobody can have changed a tensor from `writer.empty` but for its values.
    """
    if is_as_made and (body := writer.recall(batch)) is not None:
        return body
    file = io.BytesIO()
    _Packer(file, writer).dump(batch)
    body = file.getvalue()
    if is_as_made:
        writer.remember(batch, body)
    return body


def unpack(packed: bytes, buffer: Any) -> Batch:
    """Make a batch whose tensors and arrays lie in `buffer`, without a copy.

    Args:
        packed: From `pack`.
        buffer: The slot, as a writable buffer that lives as long as someone refers to it.
    """
    _unpacking.buffer = buffer
    try:
        return pickle.loads(packed)
    finally:
        _unpacking.buffer = None


def tensor_over(
    buffer: Any, offset_bytes: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Return a contiguous tensor over a part of a writable buffer, which it keeps alive.

    Args:
        buffer: The memory.
        offset_bytes: Of the first element.
        dtype: Of the elements.
        shape: Sizes, none of them 0.
    """
    numpy_dtype = _NUMPY_DTYPES.get(dtype)
    if numpy_dtype is not None:  # in half the time
        return torch.from_numpy(np.ndarray(shape, numpy_dtype, buffer, offset_bytes))
    flat = torch.frombuffer(buffer, dtype=dtype, count=prod(shape), offset=offset_bytes)
    return flat.view(shape)


def _reduce_unusual_tensor(tensor: torch.Tensor) -> Any:
    if tensor.is_quantized:
        # torch would send it without its scale, and nobody would know before it is used.
        raise TypeError("a quantized tensor loses its scale on the way: send int_repr()")
    if tensor.is_nested and tensor.layout is torch.strided:
        return torch.nested.as_nested_tensor, (list(tensor.unbind()),)
    return NotImplemented


class _Packer(pickle.Pickler):
    # As a ForkingPickler has it, which makes a new one each time.
    dispatch_table = ForkingPickler(io.BytesIO()).dispatch_table

    def __init__(self, file: io.BytesIO, writer: SlotWriter) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._writer = writer
        # Freed copies would leave their addresses to other arrays, which would then be taken
        # for them.
        self._copies: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        if (made := self._writer.reduced(obj)) is not None:
            return made
        reduce = _REDUCERS.get(type(obj))
        return NotImplemented if reduce is None else reduce(self, obj)

    def reduce_parameter(self, parameter: torch.nn.Parameter) -> Any:
        if parameter.device.type != "cpu":
            return NotImplemented
        return torch.nn.Parameter, (parameter.data, parameter.requires_grad)

    def reduce_storage(self, storage: torch.UntypedStorage) -> Any:
        if storage.device.type != "cpu":
            return NotImplemented
        offset = self._writer.place_memory(storage.data_ptr(), storage.nbytes())
        return _storage_at, (offset, storage.nbytes())

    def reduce_generator(self, generator: torch.Generator) -> Any:
        return _generator_from, (generator.get_state().numpy().tobytes(), str(generator.device))

    def reduce_tensor(self, tensor: torch.Tensor) -> Any:
        plain = (
            tensor.layout is torch.strided
            and tensor.device.type == "cpu"
            and not tensor.is_quantized
            and not tensor.is_nested
            and (tensor.is_leaf or not tensor.requires_grad)
        )
        if not plain:
            return _reduce_unusual_tensor(tensor)
        requires_grad = tensor.requires_grad
        tensor = tensor.detach().resolve_conj().resolve_neg()
        self._copies.append(tensor)
        shape, code = tuple(tensor.shape), _DTYPE_CODES[tensor.dtype]
        if tensor.numel() == 0:
            return _empty_tensor, (shape, code, requires_grad)
        if tensor.is_contiguous():
            offset = self._place_tensor(tensor)
            if requires_grad:
                return _strided_tensor_at, (offset, code, shape, tensor.stride(), True)
            return _tensor_at, (offset, code, shape)
        if _extent_of(tensor) > 2 * tensor.numel():
            # A thin view of something large: sending the rest would cost more than strides.
            return self.reduce_tensor(tensor.contiguous())
        offset = self._place_tensor(tensor)
        return _strided_tensor_at, (offset, code, shape, tensor.stride(), requires_grad)

    def _place_tensor(self, tensor: torch.Tensor) -> int | None:
        storage = tensor.untyped_storage()
        inside = int(tensor.storage_offset()) * tensor.itemsize
        view_bytes = _extent_of(tensor) * tensor.itemsize
        if storage.nbytes() <= 2 * view_bytes:  # so that views of one storage stay views of one
            offset = self._writer.place_memory(storage.data_ptr(), storage.nbytes())
            return None if offset is None else offset + inside
        return self._writer.place_memory(tensor.data_ptr(), view_bytes)

    def reduce_array(self, array: npt.NDArray[Any]) -> Any:
        if array.dtype.hasobject or array.nbytes <= SMALL_ARRAY_BYTES:
            return NotImplemented
        order = "C"
        if not array.flags.c_contiguous:
            if array.flags.f_contiguous:
                order = "F"
            else:
                array = np.ascontiguousarray(array)
                self._copies.append(array)
        offset = self._writer.place_memory(array.ctypes.data, array.nbytes)
        return _array_at, (offset, array.dtype, array.shape, order)


_REDUCERS: dict[type, Callable[[_Packer, Any], Any]] = {
    torch.Tensor: _Packer.reduce_tensor,
    torch.nn.Parameter: _Packer.reduce_parameter,
    torch.UntypedStorage: _Packer.reduce_storage,
    torch.Generator: _Packer.reduce_generator,
    np.ndarray: _Packer.reduce_array,
}


class _Unpacking(threading.local):
    buffer: Any = None


_unpacking = _Unpacking()


def _tensor_at(offset: int, code: int, shape: tuple[int, ...]) -> torch.Tensor:
    return tensor_over(_unpacking.buffer, offset, _DTYPES[code], shape)


def _strided_tensor_at(
    offset: int,
    code: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    dtype = _DTYPES[code]
    flat = torch.frombuffer(_unpacking.buffer, dtype=dtype, count=extent, offset=offset)
    return flat.as_strided(shape, strides).requires_grad_(requires_grad)


def _empty_tensor(shape: tuple[int, ...], code: int, requires_grad: bool) -> torch.Tensor:
    return torch.empty(shape, dtype=_DTYPES[code], requires_grad=requires_grad, device="cpu")


def _storage_at(offset: int, size_bytes: int) -> torch.UntypedStorage:
    if size_bytes == 0:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    flat = torch.frombuffer(
        _unpacking.buffer, dtype=torch.uint8, count=size_bytes, offset=offset
    )
    # The storage of `frombuffer` starts at the offset, not at the buffer's start.
    return flat.untyped_storage()


def _generator_from(state: bytes, device: str) -> torch.Generator:
    generator = torch.Generator(device)
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return generator


def _array_at(
    offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: str
) -> npt.NDArray[Any]:
    flat = np.frombuffer(_unpacking.buffer, dtype, count=prod(shape), offset=offset)
    return flat.reshape(shape, order="F" if order == "F" else "C")


_PLAIN = frozenset({dict, list, torch.Tensor})
_TENSOR = attrgetter("tensor")


def _keys_of(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if type(batch) is dict else ()


def _extent_of(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that a strided tensor touches."""
    sizes_and_strides = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in sizes_and_strides)


def _address_of(slot: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(slot))
