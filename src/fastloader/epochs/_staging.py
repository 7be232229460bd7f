"""What an epoch's batches pass through on their way, and the memory in which they are made."""

from functools import cache
from typing import Any

import torch

from fastloader._torch_internals import is_lost_by_fork
from fastloader.datasets._batched import has_independent_rows
from fastloader.direct import uncaptured
from fastloader.engine import BatchMaker, Deliveries, FetchPlan, InProcessRun, MergedRun
from fastloader.epochs._direct_reading import DirectMaker, DirectReading
from fastloader.errors import SettingsError
from fastloader.sampling._drawn import DrawnBatches
from fastloader.stages import (
    BatchStream,
    CopySeconds,
    HostStream,
    PinnedStream,
    copied_ahead,
    copied_ahead_and_cut,
    copied_to,
)
from fastloader.tensors._buffers import Allocator, BufferPool
from fastloader.threads._standby import Standby

__all__ = ["allocator", "device_of", "made_here", "staged"]

GATHERED_AHEAD = 2


def device_of(loader: Any) -> torch.device | None:
    """Return the accelerator that batches are copied to, with its index, or None.

    Args:
        loader: The loader, for its options as they are now.

    Raises:
        SettingsError: If there is no such device.
    """
    if loader.device is None:
        return None
    device = torch.device(loader.device)
    if device.type == "cpu":
        return None
    module = _module_of(device)
    if device.index is None:
        # Where there is but one there is no function for it.
        ask = getattr(module, "current_device", int)  # type: ignore[unreachable]  # wrong in torch's stubs
        return torch.device(device.type, ask())
    return device


@cache  # but for errors
def _module_of(device: torch.device) -> Any:
    """Return the module of torch's for a device that is there.

    Raises:
        SettingsError: If it is not.
    """
    module: Any = getattr(torch, device.type, None)
    count = module.device_count() if hasattr(module, "device_count") else 0
    if (device.index or 0) < count:
        return module
    kinds = (
        f"{count} of kind {device.type!r}, from {device.type}:0 on" if count else "none of it"
    )
    raise SettingsError(
        f"device={str(device)!r} is not there: torch sees {kinds} in this process. Choose one that "
        "is there, or leave device out to get batches on the CPU."
    )


def allocator(loader: Any, device: torch.device | None, buffers: BufferPool) -> Allocator:
    """Return what makes the tensors of batches that are made in this process.

    Args:
        loader: The loader, for its options as they are now.
        device: Where batches are copied to, if anywhere.
        buffers: Of the loader.
    """
    wants_pinned = loader.pin_memory or (device is not None and device.type == "cuda")
    if wants_pinned and torch.cuda.is_available() and not is_lost_by_fork():
        return _pinned_empty
    return buffers


def _pinned_empty(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    # Torch's cache of page-locked blocks: it keeps each until copies from it are over.
    # Worker threads make some while the loop may be capturing a graph; the default device may be another.
    with uncaptured():
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)


def made_here(
    loader: Any,
    plan: FetchPlan,
    maker: BatchMaker,
    order: DrawnBatches,
    deliveries: Deliveries,
    device: torch.device | None,
    standby: Standby | None,
    direct: DirectReading,
    seconds: CopySeconds | None,
) -> BatchStream:
    """Return the stream of an epoch without workers.

    Args:
        loader: The loader, for its options as they are now.
        plan: What to read and how.
        maker: Makes the batches.
        order: The batches to make, one after the other.
        deliveries: Takes what became of them.
        device: Where they are copied to, if anywhere.
        standby: Threads for whole batches that are copied to a device, given back at the end.
        direct: What of the data the device reads by itself.
        seconds: Takes how long each copy took, if that is wanted.
    """
    if plan.batched is None or device is None or standby is None:
        return staged(InProcessRun(maker, order, deliveries), loader, device, seconds)
    merges = (
        plan.on_error == "raise"
        and plan.batch_transform is None
        and has_independent_rows(plan.batched)
    )
    if not merges:
        run = InProcessRun(maker, order, deliveries)
        return copied_ahead(run, device, GATHERED_AHEAD, standby, seconds)
    rows = direct.open(plan.batched, device)
    whole: BatchMaker | DirectMaker = maker
    if rows is not None:
        whole = DirectMaker(rows, device, maker, _pinned_empty, standby.crew)
    merged = MergedRun(whole, order, deliveries)
    return copied_ahead_and_cut(
        merged, device, GATHERED_AHEAD, standby, merged.make_less, seconds
    )


def staged(
    stream: HostStream,
    loader: Any,
    device: torch.device | None,
    seconds: CopySeconds | None,
) -> BatchStream:
    """Return a stream of the same batches, pinned or on the device if they are to be.

    Args:
        stream: The batches as they were made.
        loader: The loader, for its options as they are now.
        device: Where they are copied to, if anywhere.
        seconds: Takes how long each copy took, if that is wanted.
    """
    if device is not None:
        return copied_to(stream, device, seconds)
    if loader.pin_memory and torch.accelerator.is_available() and not is_lost_by_fork():
        return PinnedStream(stream)
    return stream
