"""FastLoader under Ray Train.

`ray.train.torch.prepare_data_loader` builds a stock DataLoader on several workers, from some
of the options. The function of the same name here keeps FastLoader::

    from fastloader.integrations.ray import prepare_data_loader

    loader = prepare_data_loader(FastLoader(dataset, 64, shuffle=True))
"""

from typing import Any

import ray.train
import ray.train.torch
import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset

from fastloader._loader import FastLoader
from fastloader.errors import SettingsError
from fastloader.integrations._remade import remade
from fastloader.sampling._distributed import DistributedSampler, Uneven
from fastloader.sampling._foreign import translate

__all__ = ["prepare_data_loader"]


def prepare_data_loader(
    data_loader: FastLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
) -> FastLoader[Any]:
    """Prepare a loader as `ray.train.torch.prepare_data_loader` does.

    To be called in the training function. Each worker of Ray Train then reads its share of a
    map-style dataset, in another order in each epoch if the loader shuffles, and batches
    arrive on the device of the worker, copied while it computes. Shares are those of
    ``FastLoader(..., distributed=True)``: of one length in shuffled order, and each sample once
    from first to last.

    Args:
        data_loader: The loader; is not changed.
        add_dist_sampler: Whether each worker reads a share. One that has a
            `torch.utils.data.DistributedSampler` already keeps it.
        move_to_device: Whether batches are moved to the worker's device.

    Returns:
        A loader of the same class, with all its options.

    Raises:
        SettingsError: If the loader has a sampler or batch sampler of which nobody knows how to
            share it out.
    """
    changes: dict[str, Any] = {}
    context = ray.train.get_context()
    if add_dist_sampler and context.get_world_size() > 1 and _reads_everything(data_loader):
        changes |= _share_of(data_loader, context.get_world_rank(), context.get_world_size())
    if move_to_device:
        changes["device"] = ray.train.torch.get_device()
    return remade(data_loader, **changes)


def _reads_everything(loader: FastLoader[Any]) -> bool:
    return not isinstance(loader.dataset, IterableDataset) and not isinstance(
        loader.sampler, torch.utils.data.DistributedSampler
    )


def _share_of(loader: FastLoader[Any], rank: int, world_size: int) -> dict[str, Any]:
    """Return the sampler of one rank, and its batches.

    Raises:
        SettingsError: If the order cannot be shared out.
    """
    batches: Any = loader.batch_sampler
    given = batches.sampler if type(batches) is BatchSampler else loader.sampler
    order = translate(given, 0 if loader.seed is None else loader.seed)
    if order is None or type(batches) not in {BatchSampler, type(None)}:
        raise SettingsError(
            f"prepare_data_loader cannot share out the samples of a {type(given).__name__} with "
            f"a {type(batches).__name__}: use a sampler of torch's or of fastloader.sampling, or "
            "let each worker read other samples and pass add_dist_sampler=False."
        )
    dataset: Any = loader.dataset
    uneven: Uneven = "drop" if loader.drop_last else "pad" if order.shuffle else "keep"
    sampler = DistributedSampler(dataset, world_size, rank, sampler=order, uneven=uneven)
    if batches is None:
        return {"sampler": sampler}
    batches = BatchSampler(sampler, batches.batch_size, batches.drop_last)
    return {"sampler": sampler, "batch_sampler": batches}
