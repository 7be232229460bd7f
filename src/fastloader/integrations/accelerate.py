"""FastLoader under Hugging Face Accelerate.

`accelerate.Accelerator.prepare` builds a stock DataLoader from the options of the one it is
given. `prepare` does the same and keeps FastLoader's own iteration::

    from fastloader.integrations.accelerate import prepare

    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
"""

from typing import Any

import torch.utils.data
from accelerate import Accelerator
from torch.utils.data import BatchSampler, DataLoader

from fastloader._loader import FastLoader
from fastloader.integrations._accelerate_loaders import put_in_place, skip_first_batches
from fastloader.integrations._remade import remade
from fastloader.sampling._distributed import DistributedSampler
from fastloader.sampling._epoch_sampler import EpochSampler

__all__ = ["prepare", "prepare_data_loader", "skip_first_batches"]

_SHARE = ("dataset", "sampler", "batch_sampler", "batch_size", "drop_last")
"""What Accelerate changes of a loader so that each process reads its share."""


def prepare(
    accelerator: Accelerator, *objects: Any, device_placement: list[bool] | None = None
) -> Any:
    """Prepare objects as `Accelerator.prepare` does; FastLoaders stay FastLoaders.

    Sharding, gradient accumulation, `gather_for_metrics`, `save_state` and the rest remain
    Accelerate's. Batches are made, seeded and moved to the device by FastLoader.

    Args:
        accelerator: Of the run.
        objects: Models, optimizers, loaders, schedulers, in any order.
        device_placement: For each object, whether it is to be moved; the accelerator's own
            setting by default.

    Returns:
        The prepared objects in the same order; a single one by itself.
    """
    placements: list[Any] = list(device_placement or []) or [None] * len(objects)
    ready = [
        prepare_data_loader(accelerator, part, placement)
        if isinstance(part, FastLoader)
        else part
        for part, placement in zip(objects, placements, strict=True)
    ]
    return accelerator.prepare(*ready, device_placement=device_placement)


def prepare_data_loader(
    accelerator: Accelerator,
    data_loader: DataLoader[Any],
    device_placement: bool | None = None,
    slice_fn_for_dispatch: Any = None,
) -> Any:
    """Prepare one loader as `Accelerator.prepare_data_loader` does.

    Args:
        accelerator: Of the run.
        data_loader: A FastLoader; any other DataLoader is left to Accelerate.
        device_placement: Whether batches are moved to the accelerator's device; its own
            setting by default.
        slice_fn_for_dispatch: Passed on.

    Returns:
        A loader of Accelerate's own kind, which is also a FastLoader to `isinstance`. It shares
        samples out once, also if the loader had a sampler that did so already.
    """
    if isinstance(data_loader, FastLoader):
        data_loader = _reading_everything(data_loader)
    prepared = accelerator.prepare_data_loader(
        data_loader, device_placement, slice_fn_for_dispatch
    )
    if prepared is data_loader or not isinstance(data_loader, FastLoader):
        return prepared
    stock = prepared.base_dataloader
    share = {name: stock.__dict__[name] for name in _SHARE}
    ready = put_in_place(accelerator, prepared, remade(data_loader, **share))
    if isinstance(data_loader.sampler, EpochSampler):
        # Accelerate may have put in one of its own, with a seed of its own.
        ready.set_sampler(data_loader.sampler)
    return ready


def _reading_everything(loader: FastLoader[Any]) -> FastLoader[Any]:
    """Return a loader of the whole order if this one reads a share: Accelerate cuts again."""
    share: Any = loader.sampler
    if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        return loader
    if type(share) is DistributedSampler:
        whole: Any = share.sampler
    elif type(share) is torch.utils.data.DistributedSampler:
        # Among one alone there is nothing to share: only its order is left.
        whole = type(share)(share.dataset, 1, 0, shuffle=share.shuffle, seed=share.seed)
    else:
        return loader
    batches = BatchSampler(whole, loader.batch_size, loader.drop_last)
    return remade(loader, sampler=whole, batch_sampler=batches)
