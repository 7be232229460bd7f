"""Copies batches to a device on a stream of its own, one ahead of the consumer."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch

from fastloader.direct import HostRows
from fastloader.stages._ahead import AheadStream
from fastloader.stages._cut import CutStream
from fastloader.stages._stream import BatchStream, HostStream, LostBatchError
from fastloader.stages._tree import map_tensors, move_tensors
from fastloader.stages._waited_copies import WaitedCopies, has_streams
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._rows import halve_merged
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.threads._standby import Standby
from fastloader.typing import Batch

__all__ = [
    "MOST_UNDER_WAY",
    "ArrivalStream",
    "Copy",
    "CopySeconds",
    "CopyStream",
    "copied_ahead",
    "copied_ahead_and_cut",
    "copied_to",
    "recorded",
    "side_stream",
]

CopySeconds: TypeAlias = deque[float]
"""How long copies took, in their order; emptied by whoever sums them up."""

AHEAD = 2
AHEAD_ON_DEMAND = 1
"""Of a source that makes each while the consumer waits, who would else wait long for the first one."""

MOST_UNDER_WAY = 6
"""Copies that may be queued at once. A training loop that runs ahead of its device would else
ask for slot after slot, each of which has to be made and locked while copies wait."""


class Copy(NamedTuple):
    """A batch whose copy to a device has been queued."""

    batch: Batch
    event: Any
    """Passes when the batch is there."""
    is_live: bool
    """Whether it reads the caller's own data, which must not change before."""


class _Source(NamedTuple):
    """What a copy under way reads: must not be used again before its event has passed."""

    event: Any
    host: Batch
    began: Any
    """Event before the copy, if it is timed."""


@cache
def side_stream(module: Any, device: torch.device) -> Any:
    """Return the stream on which this process copies to a device: one for all passes and loaders.

    Torch keeps freed memory for the stream that it was given on. A stream of its own for each pass would
    find none, have the device allocate anew, and leave its batches' memory behind: thirty-two times, as
    many as torch has streams.
    """
    return module.Stream(device=device)


class CopyStream:
    """A stream of copies to a device, of the batches of another stream.

    Copies are queued on a side stream, the same for all. The host waits for nothing, unless so many copies are
    queued that the connection to the device is what the loop is waiting for. What a batch was
    copied from is held until its event has passed, so its memory may be registered memory of
    our own, of which torch knows nothing. `HostRows` become tensors here.

    **Threads:** any, one at a time.

    Args:
        source: Of batches in host memory; page-locked, or the copies are slow.
        device: An accelerator, with its index.
        count_ahead: Returns how many copies are queued before they are asked for, of batches that are there.
        seconds: Takes how long each copy took on the device, by its events; None leaves them
            untimed.
        make_less: Of a source of `Merged` batches, which are halved where the device has no memory
            for them: called then, so that others are smaller.
    """

    def __init__(
        self,
        source: BatchStream,
        device: torch.device,
        count_ahead: Callable[[], int] = lambda: 0,
        seconds: CopySeconds | None = None,
        make_less: Callable[[], object] | None = None,
    ) -> None:
        self._source = source
        self._make_less = make_less
        self._seconds = seconds
        self._device = device
        self._count_ahead = count_ahead
        self._module = torch.get_device_module(device)
        self._stream = side_stream(self._module, device)
        self._ahead: deque[Copy | Exception] = deque()
        self._in_hand: deque[Batch] = deque()  # one that is being copied, or its parts
        self._is_live = False
        self._under_way: deque[_Source] = deque()

    def __next__(self) -> Copy:
        """Return the next copy.

        A batch that is on its way when something interrupts this, or for which the device has no memory
        at the moment, is copied when the next one is asked for.

        Raises:
            StopIteration: At the end.
            LostBatchError: If the batch cannot be copied, by an error of its own ``to`` for instance.
        """
        num_ahead = self._count_ahead()
        self._fill(num_ahead)
        if not self._ahead:
            if not self._in_hand:
                self._in_hand.append(next(self._source))
            self._ahead.append(self._copy_in_hand())
        self._fill(num_ahead + 1 if num_ahead else 0)
        return self._take()

    def next_if_ready(self) -> list[Copy]:
        """Return the next copy in a list if it has been queued."""
        self._fill(self._count_ahead())
        return [self._take()] if self._ahead else []

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        state, count, num_sources = self._source.queue(), len(self._ahead), len(self._under_way)
        return state._replace(
            num_asked=state.num_asked + count,
            num_ready=state.num_ready + count,
            num_pinned=state.num_pinned + num_sources * (self._device.type == "cuda"),
            num_copies=state.num_copies + num_sources,
        )

    def close(self) -> None:
        """Cancel what is under way, after the copies that have begun."""
        self._stream.synchronize()
        while self._under_way:
            self._let_go(self._under_way.popleft())
        self._ahead.clear()
        self._in_hand.clear()
        self._source.close()

    def _fill(self, count: int) -> None:
        """Queue copies of batches that are there until there are so many."""
        while self._under_way and self._under_way[0].event.query():
            self._let_go(self._under_way.popleft())
        try:
            while len(self._ahead) < count:
                if not self._in_hand:
                    self._in_hand.extend(self._source.next_if_ready())
                if not self._in_hand:
                    return
                self._ahead.append(self._copy_in_hand())
        except torch.OutOfMemoryError:
            return  # there may be enough when it is asked for
        except Exception as error:  # noqa: BLE001 - raised at its batch, after those before it
            self._ahead.append(error)

    def _take(self) -> Copy:
        held_interrupts.hold()
        copy = self._ahead.popleft()
        if isinstance(copy, Exception):
            raise copy
        return copy

    def _copy_in_hand(self) -> Copy:
        try:
            copy = self._start_copy(self._in_hand[0])
        except torch.OutOfMemoryError:
            if not self._halve_in_hand():
                raise
            return self._copy_in_hand()
        except Exception as error:
            self._in_hand.popleft()
            raise LostBatchError(error) from error
        self._in_hand.popleft()
        return copy

    def _halve_in_hand(self) -> bool:
        """Have two parts of merged batches in place of them; return whether that can be."""
        if self._make_less is None or len(self._in_hand[0].lengths) == 1:
            return False
        self._make_less()
        parts = halve_merged(self._in_hand[0])
        held_interrupts.hold()
        self._in_hand.popleft()
        self._in_hand.extendleft(reversed(parts))
        return True

    def _start_copy(self, batch: Batch) -> Copy:
        if len(self._under_way) == MOST_UNDER_WAY:
            self._under_way[0].event.synchronize()  # which may be interrupted
            self._let_go(self._under_way.popleft())
        with self._module.device(self._device), self._module.stream(self._stream):
            began = None
            if self._seconds is not None:
                began = self._module.Event(enable_timing=True)
                began.record(self._stream)
            self._is_live = False
            moved = move_tensors(batch, self._device, note=self._note_moved)
            event = self._module.Event(enable_timing=began is not None)
            event.record(self._stream)
        self._under_way.append(_Source(event, batch, began))
        return Copy(moved, event, self._is_live)

    def _let_go(self, source: _Source) -> None:
        """Note how long a copy took that is over."""
        if self._seconds is not None and source.began is not None:
            self._seconds.append(source.began.elapsed_time(source.event) / 1e3)

    def _note_moved(self, part: Any) -> None:
        self._is_live |= isinstance(part, HostRows)


class ArrivalStream:
    """A stream of batches on a device, of the copies of another stream.

    The consumer's stream waits for the event of a copy. The host waits only for copies of the
    caller's own data, who may change it as soon as they have the batch; most are over by then.

    Args:
        source: Of each batch's `Copy`.
        device: Where they arrive.
        go_on: Called when the consumer may have a batch that it has asked for.
    """

    def __init__(
        self,
        source: BatchStream,
        device: torch.device,
        go_on: Callable[[], object] = lambda: None,
    ) -> None:
        self._source = source
        self._device = device
        self._go_on = go_on
        self._module = torch.get_device_module(device)
        # One at most, so that what interrupts this loses none.
        self._in_hand: deque[Copy] = deque()

    def __next__(self) -> Batch:
        """Return the next batch, on the device; StopIteration at the end."""
        if not self._in_hand:
            self._in_hand.append(next(self._source))
        batch = self._hand_over(self._in_hand[0])
        self._go_on()
        held_interrupts.hold()
        self._in_hand.clear()
        return batch

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list if its copy has been queued."""
        if not self._in_hand:
            self._in_hand.extend(self._source.next_if_ready())
        batches = list(map(self._hand_over, self._in_hand))
        self._in_hand.clear()
        return batches

    def queue(self) -> QueueState:
        """Return what is under way; safe in any thread."""
        return self._source.queue()

    def close(self) -> None:
        """Cancel what is under way, after the copies that have begun."""
        self._in_hand.clear()
        self._source.close()

    def _hand_over(self, copy: Copy) -> Batch:
        current = self._module.current_stream(self._device)
        if not copy.event.query():  # which keeps the interpreter, as the other calls do not
            current.wait_event(copy.event)
            if copy.is_live:
                copy.event.synchronize()
        # The allocator gave the memory on another stream: tell it who uses it from now on.
        map_tensors(copy.batch, lambda tensor: recorded(tensor, current))
        return copy.batch


def copied_to(
    source: HostStream, device: torch.device, seconds: CopySeconds | None = None
) -> BatchStream:
    """Return the batches of a stream on a device, where copies are queued by the consumer.

    Each is queued while the consumer computes on the batch before.

    Args:
        source: Of batches in host memory.
        device: An accelerator, with its index.
        seconds: Takes how long each copy took, if that is wanted.
    """
    if not has_streams(device):
        return WaitedCopies(source, device)

    def count_ahead() -> int:
        return AHEAD_ON_DEMAND if source.is_on_demand else AHEAD

    return ArrivalStream(CopyStream(source, device, count_ahead, seconds), device)


def copied_ahead(
    source: BatchStream,
    device: torch.device,
    depth: int,
    standby: Standby,
    seconds: CopySeconds | None = None,
) -> BatchStream:
    """Return the batches of a stream on a device, where a thread makes and copies them.

    A training loop that computes for two milliseconds a batch would else spend a fifth of that
    on asking for the copies.

    Args:
        source: Of batches in host memory; only the thread touches it.
        device: An accelerator, with its index.
        depth: Batches that are made and copied ahead.
        standby: Has the thread; given back at the end.
        seconds: Takes how long each copy took, if that is wanted.
    """
    if not has_streams(device):
        return AheadStream(WaitedCopies(source, device), depth, standby)
    copies = CopyStream(source, device, seconds=seconds)
    ahead = AheadStream(copies, depth, standby)
    return ArrivalStream(ahead, device, ahead.begin)


def copied_ahead_and_cut(
    source: BatchStream,
    device: torch.device,
    depth: int,
    standby: Standby,
    make_less: Callable[[], object],
    seconds: CopySeconds | None = None,
) -> BatchStream:
    """Return single batches of a stream of `Merged` ones as `copied_ahead` does.

    Args:
        source: Of merged batches in host memory; only the thread touches it.
        device: An accelerator, with its index.
        depth: Merged batches that are made and copied ahead.
        standby: Has the thread; given back at the end.
        make_less: Called in the thread when the device has no memory for so many batches in one.
        seconds: Takes how long each copy took, if that is wanted.
    """
    if not has_streams(device):
        return CutStream(AheadStream(WaitedCopies(source, device), depth, standby))
    copies = CopyStream(source, device, seconds=seconds, make_less=make_less)
    ahead = AheadStream(copies, depth, standby)
    return CutStream(ArrivalStream(ahead, device, ahead.begin), ahead.go_on)


def recorded(tensor: torch.Tensor, stream: Any) -> torch.Tensor:
    """Tell the allocator that a stream uses a tensor that was made on another one."""
    if tensor.device.type != "cpu":
        for part in _parts_in_memory(tensor):
            part.record_stream(stream)
    return tensor


def _parts_in_memory(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return what a tensor is made of: torch records no streams of sparse, nested and quantized ones."""
    if tensor.is_quantized:
        blank = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return [blank.set_(tensor.untyped_storage())]
    if tensor.is_nested:
        return [tensor.values()]
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]  # noqa: SLF001 - the public ones want it coalesced
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
