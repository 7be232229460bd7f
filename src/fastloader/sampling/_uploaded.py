"""Indices of batches that may lie on a device as well, copied there many batches at once."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader._torch_internals import stream_teller
from fastloader.sampling._compact import IndexArray
from fastloader.sampling._drawn import Drawn, DrawnBatches, Stretch

__all__ = ["UploadedIndices", "UploadedOrder", "join_uploaded"]

_MOST_INDICES = 1 << 17
"""Copied at once: some ten thousand take no longer than one, so many a twentieth of a millisecond."""


class _Upload:
    """Indices of several batches, which are copied to a device when they are first asked for there.

    Args:
        array: All of them, int64.
        device: An accelerator, with its index.
        tell_stream: Tells which stream is current.
    """

    def __init__(
        self,
        array: npt.NDArray[np.int64],
        device: torch.device,
        tell_stream: Callable[[], Any],
    ) -> None:
        self.array = array
        self.device = device
        self.tell_stream = tell_stream
        self._copied: torch.Tensor | None = None
        self._stream: Any = None

    def on_device(self) -> torch.Tensor | None:
        """Return the copy, which is queued now if there is none; None if another stream than then is current."""
        stream = self.tell_stream()
        if self._copied is None:
            host = torch.empty(
                len(self.array), dtype=torch.int64, device="cpu", pin_memory=True
            )
            np.copyto(host.numpy(), self.array)  # by this thread alone
            self.note_copy(host.to(self.device, non_blocking=True))
        return self._copied if stream == self._stream else None

    def note_copy(self, copied: torch.Tensor) -> None:
        """Have a copy that was made on the current stream."""
        self._copied, self._stream = copied, self.tell_stream()


class UploadedIndices(IndexArray):
    """Indices of a batch as an array and, on the stream that copies them, on a device.

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

    def part(self, start: int, stop: int) -> "UploadedIndices":
        """Return some that follow one another; see `IndexArray.part`."""
        return UploadedIndices(self.upload, self.start + start, self.start + stop)

    def on_device(self) -> torch.Tensor | None:
        """Return them on the device, int64, shape ``(N,)``; None if another stream is current."""
        copied = self.upload.on_device()
        return None if copied is None else copied[self.start : self.stop]

    def mapped(self, table: npt.NDArray[np.int64], on_device: torch.Tensor) -> IndexArray:
        """Return the numbers of a table at these places, on the device too if that can be.

        Args:
            table: int64, shape ``(M,)``.
            on_device: The same on the device.
        """
        places = self.on_device()
        if places is None:
            return IndexArray(table[self.array])
        upload = _Upload(table[self.array], self.upload.device, self.upload.tell_stream)
        upload.note_copy(on_device.index_select(0, places))
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
    """The batches of an order, whose indices come to a device when they are asked for there, where they are arrays.

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
        self._stretch: Stretch | None = None
        """In place of those that are ready."""

    def take(self, most: int) -> Sequence[Drawn]:
        """Return the next batches, fewer at the end of the order, or where that saves making objects.

        Args:
            most: How many there may be.
        """
        while not self._stretch and len(self._ready) < most and self._read():
            pass
        if self._stretch:
            taken, self._stretch = self._stretch.split(most)
            return taken
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def next_length(self) -> int:
        """Return how many samples the next batch has; 0 at the end of the order."""
        if not self._stretch and not self._ready:
            self._read()
        ready = self._stretch or self._ready
        return len(ready[0].indices) if ready else 0

    def _read(self) -> bool:
        """Read what is copied together; return whether there was anything."""
        uncut = self._order.take_uncut(_MOST_INDICES)
        if uncut is not None:
            first, indices, size = uncut
            if len(indices):
                uploaded = UploadedIndices(self._upload(indices), 0, len(indices))
                self._stretch = Stretch(first, uploaded, size)
            return len(indices) > 0
        drawn = self._order.take(1)
        if drawn and type(drawn[0].indices) is IndexArray:
            drawn += self._order.take(_MOST_INDICES // len(drawn[0].indices))
        if drawn and all(type(one.indices) is IndexArray for one in drawn):
            numbers, parts, states = zip(*drawn, strict=True)
            arrays = [part.array for part in parts]
            edges = list(accumulate(map(len, arrays), initial=0))
            upload = repeat(self._upload(np.concatenate(arrays)))
            uploaded_parts = map(UploadedIndices, upload, edges, islice(edges, 1, None))
            drawn = list(map(Drawn, numbers, uploaded_parts, states))
        self._ready.extend(drawn)
        return bool(drawn)

    def _upload(self, array: npt.NDArray[np.int64]) -> _Upload:
        return _Upload(array, self._device, self._tell_stream)
