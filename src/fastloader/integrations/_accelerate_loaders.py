"""Accelerate's own kinds of loader, with a FastLoader in them in place of a stock DataLoader."""

import copy
import logging
from typing import Any, Self, cast

from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, DataLoaderShard
from accelerate.data_loader import skip_first_batches as skip_with_stock
from torch.utils.data import IterableDataset

from fastloader._loader import FastLoader
from fastloader.integrations._remade import remade

__all__ = ["KeptEngine", "put_in_place", "skip_first_batches"]

logger = logging.getLogger("fastloader")


class KeptEngine:
    """What both kinds have in common.

    They iterate over `base_dataloader`, so all that Accelerate does around a pass stays as it
    is: its own share for each process, one batch ahead to know the last one, the state of
    gradient accumulation.
    """

    base_dataloader: FastLoader[Any]
    dl_state_dict: dict[str, Any]
    iteration: int
    _num_skipped = 0

    def __len__(self) -> int:
        return super().__len__() - self._num_skipped  # type: ignore[misc, no-any-return]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; Accelerate does so before each.

        Args:
            epoch: Number of the epoch, from 0.
        """
        super().set_epoch(epoch)  # type: ignore[misc]
        self.base_dataloader.set_epoch(epoch)
        if self._num_skipped:
            epochs = self.base_dataloader._epochs  # noqa: SLF001 - of this package
            epochs.skip_batches(self.base_dataloader, self._num_base_batches(self._num_skipped))

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer of the latest pass is."""
        return self.dl_state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on from a saved state, in its epoch."""
        self.base_dataloader.load_state_dict(state_dict)
        self.dl_state_dict = self.base_dataloader.state_dict()
        self.iteration = self.dl_state_dict["epoch"]

    def without_first(self, num_batches: int) -> Self:
        """Return a loader like this one whose passes begin later.

        Args:
            num_batches: To be left out, as this process counts them.
        """
        clone: Any = copy.copy(self)
        clone.base_dataloader = remade(self.base_dataloader)
        if isinstance(clone.dataset, IterableDataset):
            clone.skip_batches = num_batches
        else:
            clone._num_skipped = num_batches  # noqa: SLF001 - of its own class
        return cast("Self", clone)

    def _num_base_batches(self, num_batches: int) -> int:
        """Return how many batches of `base_dataloader` make some of this loader's."""
        return num_batches

    def __reduce__(self) -> tuple[Any, ...]:
        # Accelerate's own would make a stock loader, of arguments that are none.
        return _bare, (type(self),), self.__dict__


class _Shard(KeptEngine, DataLoaderShard):  # type: ignore[misc]
    """Each process reads its share."""


class _Dispatcher(KeptEngine, DataLoaderDispatcher):  # type: ignore[misc]
    """The first process reads for all."""

    def _num_base_batches(self, num_batches: int) -> int:
        return num_batches * self._num_together()

    def adjust_state_dict_for_prefetch(self) -> None:
        """Take back the batches read for a step that has not been handed out."""
        ahead = self._num_together() - 1
        if self.dl_state_dict["num_batches"] >= ahead:
            self.dl_state_dict["num_batches"] -= ahead

    def _num_together(self) -> int:
        return 1 if self.split_batches else self.state.num_processes


def put_in_place(accelerator: Accelerator, prepared: Any, loader: FastLoader[Any]) -> Any:
    """Let a FastLoader read in place of the stock loader in a prepared one.

    Args:
        accelerator: That prepared it.
        prepared: From `Accelerator.prepare_data_loader`.
        loader: Reads the same samples in the same order.
    """
    if type(prepared) is DataLoaderShard:
        kind: type[KeptEngine] = _Shard
        if prepared.device is not None:
            loader.device = prepared.device
    elif type(prepared) is DataLoaderDispatcher:
        kind = _Dispatcher
        if not accelerator.is_main_process:
            # Opens each pass without reading: workers would make batches that nobody takes.
            loader.num_workers, loader.timeout = 0, 0
    else:
        logger.warning(
            "Accelerate prepared a %s, in which FastLoader cannot stand: its batches come from "
            "a stock DataLoader.",
            type(prepared).__name__,
        )
        return prepared
    _show_sampler(loader.batch_sampler)
    ready: Any = _bare(kind)
    ready.__dict__.update(prepared.__dict__)
    ready.base_dataloader = loader
    ready.dl_state_dict = loader.state_dict()
    ready._is_accelerate_prepared = True  # noqa: SLF001 - else it would be sharded once more
    known = accelerator._dataloaders  # noqa: SLF001 - where save_state and others look
    known[known.index(prepared)] = ready
    # Its own method would go on with a stock loader.
    accelerator.skip_first_batches = skip_first_batches
    return ready


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """Return a loader whose passes begin later, as `accelerate.skip_first_batches` does.

    The samples of skipped batches are not read, and the batches after them are those of the
    whole pass, random draws included.

    Args:
        dataloader: From `prepare`; any other one is left to Accelerate.
        num_batches: To be skipped, as this process counts them.
    """
    if isinstance(dataloader, KeptEngine):
        return dataloader.without_first(num_batches)
    return skip_with_stock(dataloader, num_batches)


def _show_sampler(batch_sampler: Any) -> None:
    """Let what belongs to the sampler in a share be found: its generator, its epoch."""
    if isinstance(batch_sampler, BatchSamplerShard) and not hasattr(batch_sampler, "sampler"):
        batch_sampler.sampler = getattr(batch_sampler.batch_sampler, "sampler", None)


def _bare(kind: type[KeptEngine]) -> KeptEngine:
    # Past __init__, which would build a stock loader.
    return object.__new__(kind)
