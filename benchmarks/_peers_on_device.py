"""Loaders of others that bring batches to the device themselves, each as its documentation advises.

A factory is one of `_peers`; its batches are pairs of images and labels on the current CUDA device.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from _measurement import CannotRun
from _peers import Epochs, Factory, import_peer

__all__ = ["ON_DEVICE"]


def _timm(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    prefetch_loader = import_peer("timm.data.loader", "timm").PrefetchLoader
    _require_cuda()
    loader = DataLoader(
        dataset,
        batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        pin_memory=True,
        persistent_workers=num_workers > 0,
    )
    return functools.partial(iter, prefetch_loader(loader, device=torch.device("cuda")))


class _Samples:
    """What DALI's processes ask for: the sample at a place of an epoch, as arrays."""

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool) -> None:
        self._dataset = dataset
        self._num_batches = len(dataset) // batch_size
        self._shuffle = shuffle

    def __call__(self, place: Any) -> tuple[Any, Any]:
        if place.iteration >= self._num_batches:
            raise StopIteration
        index = place.idx_in_epoch
        if self._shuffle:
            index = _order(len(self._dataset), place.epoch_idx)[index]
        image, label = self._dataset[int(index)]
        return image.numpy(), np.asarray(label)


@functools.lru_cache(maxsize=1)
def _order(length: int, epoch: int) -> Any:
    return np.random.default_rng(epoch).permutation(length)


def _dali(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    dali = import_peer("nvidia.dali", "nvidia-dali-cuda130")
    _require_cuda()
    plugin = import_peer("nvidia.dali.plugin.pytorch", "nvidia-dali-cuda130")

    @dali.pipeline_def(  # type: ignore[untyped-decorator]  # not installed where types are checked
        batch_size=batch_size,
        num_threads=max(1, num_workers),
        device_id=torch.cuda.current_device(),
        py_num_workers=max(1, num_workers),
        py_start_method="spawn",
    )
    def pipeline() -> Any:
        images, labels = dali.fn.external_source(
            source=_Samples(dataset, batch_size, shuffle),
            num_outputs=2,
            batch=False,
            parallel=True,
        )
        return images.gpu(), labels.gpu()

    batches = plugin.DALIGenericIterator(pipeline(), ["images", "labels"], auto_reset=True)

    def epoch() -> Iterator[Any]:
        for [batch] in batches:
            yield batch["images"], batch["labels"]

    return epoch


def _require_cuda() -> None:
    """Check that there is a device.

    Raises:
        CannotRun: If there is none.
    """
    if not torch.cuda.is_available():
        raise CannotRun("needs a CUDA device")


ON_DEVICE: Mapping[str, Factory] = {"timm PrefetchLoader": _timm, "NVIDIA DALI": _dali}
