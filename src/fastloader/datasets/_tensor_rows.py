"""Rows of a tensor, selected into a batch as stacking them one by one would give them."""

import numpy as np
import numpy.typing as npt
import torch

from fastloader.tensors._buffers import empty_batch
from fastloader.tensors._gather import gather_rows

__all__ = ["Rows", "order_in_memory"]


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Torch lacks some functions for these, and moving bytes needs no sign."""


class Rows:
    """Selects rows of a tensor, with the result of stacking them one by one.

    Args:
        tensor: Strided, with rows along its first axis.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._dtype = tensor.dtype
        source = tensor.view(_SIGNED[tensor.dtype]) if tensor.dtype in _SIGNED else tensor
        order = order_in_memory(tensor)
        self._inverse = None if order is None else [order.index(n) for n in range(tensor.ndim)]
        self._source = source if order is None else source.permute(order)
        self._shape = tuple(self._source.shape[1:])
        is_lazy = tensor.is_conj() or tensor.is_neg()  # its memory is not its values
        self._copies = tensor.device.type == "cpu" and not tensor.requires_grad and not is_lazy

    def select(self, positions: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return rows as a batch.

        Args:
            positions: Rows to take, shape ``(B,)``.
        """
        source = self._source
        if self._copies:
            out = empty_batch((len(positions), *self._shape), source.dtype)
            rows = gather_rows(source, positions, out)
        else:
            rows = source.index_select(0, torch.from_numpy(positions).to(source.device))
        if source.dtype is not self._dtype:
            rows = rows.view(self._dtype)
        return rows if self._inverse is None else rows.permute(self._inverse)


def order_in_memory(tensor: torch.Tensor) -> list[int] | None:
    """Return the order of axes in memory if stacking keeps channels last, as it does for some.

    Convolutions may be faster on batches of that order.
    """
    if tensor.is_contiguous() or tensor.ndim not in {4, 5} or not len(tensor):
        return None
    stacked = torch.stack([tensor[0].detach()] * 2)
    is_kept = not stacked.is_contiguous()
    return [0, *range(2, tensor.ndim), 1] if is_kept else None
