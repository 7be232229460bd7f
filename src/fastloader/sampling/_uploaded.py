"""Indices of batches that lie on a device as well, copied there many batches at once."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, count, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastloader._torch_internals import stream_teller
from fastloader.sampling._compact import IndexArray
from fastloader.sampling._drawn import Drawn, DrawnBatches

__all__ = ["UploadedIndices", "UploadedOrder", "join_uploaded"]

_MOST_INDICES = 1 << 17
"""Copied at once: some ten thousand take no longer than one, so many a twentieth of a millisecond."""


class _Upload(NamedTuple):
    """Indices of several batches, here and there."""

    array: npt.NDArray[np.int64]
    on_device: torch.Tensor
    stream: Any
    """That was current then, as `tell_stream` has it."""
    tell_stream: Callable[[], Any]


class UploadedIndices(IndexArray):
    """Indices of a batch as an array and, on the stream that copied them, on a device.

    Args:
        upload: Has them.
        start: Place of the first.
        stop: Place after the last.
    """

    def __init__(self, upload: _Upload, start: int, stop: int) -> None:
        self.upload = upload
        self.start = start
        self.stop = stop

    @cached_property
    def array(self) -> npt.NDArray[np.int64]:  # type: ignore[override]  # most are never read
        """The indices here, int64, shape ``(N,)``."""
        return self.upload.array[self.start : self.stop]

    def __len__(self) -> int:
        return self.stop - self.start

    def on_device(self) -> torch.Tensor | None:
        """Return them on the device, int64, shape ``(N,)``; None if another stream is current."""
        upload = self.upload
        if upload.tell_stream() != upload.stream:
            return None
        return upload.on_device[self.start : self.stop]

    def mapped(self, table: npt.NDArray[np.int64], on_device: torch.Tensor) -> IndexArray:
        """Return the numbers of a table at these places, on the device too if that can be.

        Args:
            table: int64, shape ``(M,)``.
            on_device: The same on the device.
        """
        places = self.on_device()
        if places is None:
            return IndexArray(table[self.array])
        upload = self.upload._replace(
            array=table[self.array], on_device=on_device.index_select(0, places)
        )
        return UploadedIndices(upload, 0, len(self))


def join_uploaded(parts: Sequence[Any]) -> UploadedIndices | None:
    """Return the indices of batches that follow one another as those of one.

    Args:
        parts: Of each; at least one.

    Returns:
        None if they were not copied together.
    """
    first = parts[0]
    if type(first) is not UploadedIndices:
        return None
    stop = first.start
    for part in parts:
        if type(part) is not UploadedIndices or part.upload is not first.upload:
            return None
        if part.start != stop:
            return None
        stop = part.stop
    return UploadedIndices(first.upload, first.start, stop)


class UploadedOrder:
    """The batches of an order, with their indices on a device where they are arrays.

    Only arrays are read ahead: they come of samplers that know their order from the start.

    Args:
        order: The batches.
        device: An accelerator, with its index.
    """

    def __init__(self, order: DrawnBatches, device: torch.device) -> None:
        order.makes_lists = False
        self._order = order
        self._device = device
        self._tell_stream = stream_teller(device)
        self._ready: deque[Drawn] = deque()

    def take(self, most: int) -> list[Drawn]:
        """Return the next batches, fewer at the end of the order.

        Args:
            most: How many there may be.
        """
        while len(self._ready) < most and self._read():
            pass
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def _read(self) -> bool:
        """Read what is copied together; return whether there was anything."""
        uncut = self._order.take_uncut(_MOST_INDICES)
        if uncut is not None:
            first, indices, size = uncut
            edges = [*range(0, len(indices), size), len(indices)]
            if len(edges) > 1:
                self._ready.extend(self._uploaded([indices], edges, count(first), repeat(None)))
            return len(edges) > 1
        drawn = self._order.take(1)
        if drawn and type(drawn[0].indices) is IndexArray:
            drawn += self._order.take(_MOST_INDICES // len(drawn[0].indices))
        if drawn and all(type(one.indices) is IndexArray for one in drawn):
            numbers, parts, states = zip(*drawn, strict=True)
            arrays = [part.array for part in parts]
            edges = list(accumulate(map(len, arrays), initial=0))
            drawn = self._uploaded(arrays, edges, numbers, states)
        self._ready.extend(drawn)
        return bool(drawn)

    def _uploaded(
        self,
        arrays: Sequence[npt.NDArray[np.int64]],
        edges: Sequence[int],
        numbers: Iterable[int],
        states: Iterable[bytes | None],
    ) -> list[Drawn]:
        """Return batches whose indices are on the device.

        Args:
            arrays: Their indices, one array after the other.
            edges: Where batches begin in these, and where the last one ends.
            numbers: Of the batches.
            states: Of the sampler after each.
        """
        host = torch.empty(edges[-1], dtype=torch.int64, pin_memory=True)
        array = np.concatenate(arrays, out=host.numpy())  # by this thread alone
        copied = host.to(self._device, non_blocking=True)
        upload = _Upload(array, copied, self._tell_stream(), self._tell_stream)
        parts = map(UploadedIndices, repeat(upload), edges, islice(edges, 1, None))
        return list(map(Drawn, numbers, parts, states))
