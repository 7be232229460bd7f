"""Batches that are gathered on a device, handed to whatever stream computes with them."""

from collections.abc import Callable
from copy import copy
from operator import length_hint
from typing import Any

import torch

from fastloader._torch_internals import stream_teller
from fastloader.stages._cut import CutStream
from fastloader.stages._device import recorded
from fastloader.stages._stream import BatchStream
from fastloader.stages._tree import map_tensors
from fastloader.streams._on_demand import OnDemand
from fastloader.tensors._rows import Merged
from fastloader.typing import Batch

__all__ = ["ResidentStream"]


class ResidentStream(OnDemand, CutStream):
    """A stream of single batches of data that lies on a device.

    They are gathered on the stream that is current when they are made, so whoever computes on
    it has nothing to wait for.

    Args:
        source: Gives `Merged` batches on the device.
        device: An accelerator, with its index.
        note_made: Called when merged batches have been gathered.
    """

    def __init__(
        self,
        source: BatchStream,
        device: torch.device,
        note_made: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(source)
        self._note_made = note_made
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self.tell_stream = stream_teller(device)
        """Tells which stream is current, to be compared with `told`."""
        self.told: Any = None
        """The stream that may use what is in `ready`."""
        self._made_on: Any = None

    def __next__(self) -> Batch:
        """Return the next batch; StopIteration at the end."""
        self.fill()
        return super().__next__()

    def fill(self) -> list[Batch]:
        """Have batches lie in `ready` that the current stream may use.

        Returns:
            The first of them, if there were none before.

        Raises:
            StopIteration: At the end.
        """
        is_empty = not length_hint(self.ready)
        if is_empty:
            self._refill()
        first = next(copy(self.ready))  # which stays there
        if (told := self.tell_stream()) != self.told:
            current = self._module.current_stream(self._device)
            current.wait_stream(self._made_on)
            # The others lie in the same memory.
            map_tensors(first, lambda tensor: recorded(tensor, current))
            self.told = told
        return [first] if is_empty else []

    def _divide(self, merged: Merged) -> None:
        self.told = self.tell_stream()
        self._made_on = self._module.current_stream(self._device)
        super()._divide(merged)
        self._note_made()
