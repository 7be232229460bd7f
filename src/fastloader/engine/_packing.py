"""A batch as a slot full of arrays and a small pickle that says where each array lies."""

import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.engine._slot_writer import SlotWriter
from fastloader.engine._unpacking import (
    DTYPE_CODES,
    array_at,
    empty_tensor,
    generator_from,
    storage_at,
    strided_tensor_at,
    tensor_at,
)
from fastloader.pickling._sent_classes import reduce_sent_class
from fastloader.typing import Batch

__all__ = ["can_be_packed", "pack"]

SMALL_ARRAY_BYTES = 1024
"""NumPy arrays up to this stay in the pickle, but for read-only ones: they would be read-only there, too."""


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


def can_be_packed(part: object) -> bool:
    """Return whether a batch that is this could be sent."""
    try:
        pack(part, SlotWriter(None))
    except Exception:  # noqa: BLE001 - any __reduce__ or __getstate__ may raise
        return False
    return True


def _reduce_unusual_tensor(tensor: torch.Tensor) -> Any:
    if tensor.is_quantized:
        # Torch's way to other processes is without its scale, and nobody would know before it is used.
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
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
        if (reduce := _REDUCERS.get(type(obj))) is not None:
            return reduce(self, obj)
        return reduce_sent_class(obj) if isinstance(obj, type) else NotImplemented

    def reduce_parameter(self, parameter: torch.nn.Parameter) -> Any:
        if parameter.device.type != "cpu":
            return NotImplemented
        return torch.nn.Parameter, (parameter.data, parameter.requires_grad)

    def reduce_storage(self, storage: torch.UntypedStorage) -> Any:
        if storage.device.type != "cpu":
            return NotImplemented
        offset = self._writer.place_memory(storage.data_ptr(), storage.nbytes())
        return storage_at, (offset, storage.nbytes())

    def reduce_generator(self, generator: torch.Generator) -> Any:
        return generator_from, (generator.get_state().numpy().tobytes(), str(generator.device))

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
        shape, code = tuple(tensor.shape), DTYPE_CODES[tensor.dtype]
        if tensor.numel() == 0:
            return empty_tensor, (shape, code, requires_grad)
        if tensor.is_contiguous():
            offset = self._place_tensor(tensor)
            if requires_grad:
                return strided_tensor_at, (offset, code, shape, tensor.stride(), True)
            return tensor_at, (offset, code, shape)
        if _extent_of(tensor) > 2 * tensor.numel():
            # A thin view of something large: sending the rest would cost more than strides.
            return self.reduce_tensor(tensor.contiguous())
        offset = self._place_tensor(tensor)
        return strided_tensor_at, (offset, code, shape, tensor.stride(), requires_grad)

    def _place_tensor(self, tensor: torch.Tensor) -> int | None:
        storage = tensor.untyped_storage()
        inside = int(tensor.storage_offset()) * tensor.itemsize
        view_bytes = _extent_of(tensor) * tensor.itemsize
        if storage.nbytes() <= 2 * view_bytes:  # so that views of one storage stay views of one
            offset = self._writer.place_memory(storage.data_ptr(), storage.nbytes())
            return None if offset is None else offset + inside
        return self._writer.place_memory(tensor.data_ptr(), view_bytes)

    def reduce_array(self, array: npt.NDArray[Any]) -> Any:
        most_bytes = SMALL_ARRAY_BYTES if array.flags.writeable else 0
        if array.dtype.hasobject or array.nbytes <= most_bytes:
            return NotImplemented
        order = "C"
        if not array.flags.c_contiguous:
            if array.flags.f_contiguous:
                order = "F"
            else:
                array = np.ascontiguousarray(array)
                self._copies.append(array)
        offset = self._writer.place_memory(array.ctypes.data, array.nbytes)
        return array_at, (offset, array.dtype, array.shape, order)


_REDUCERS: dict[type, Callable[[_Packer, Any], Any]] = {
    torch.Tensor: _Packer.reduce_tensor,
    torch.nn.Parameter: _Packer.reduce_parameter,
    torch.UntypedStorage: _Packer.reduce_storage,
    torch.Generator: _Packer.reduce_generator,
    np.ndarray: _Packer.reduce_array,
}


def _extent_of(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that a strided tensor touches."""
    sizes_and_strides = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in sizes_and_strides)
