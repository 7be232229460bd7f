"""FastLoader under the Trainer of Hugging Face Transformers.

The Trainer builds stock DataLoaders. A Trainer with this mixin builds FastLoaders::

    from fastloader.integrations.transformers import FastLoaderMixin


    class FastTrainer(FastLoaderMixin, Trainer):
        pass
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import transformers.trainer
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_utils import seed_worker

from fastloader._loader import FastLoader
from fastloader.integrations._accelerate_loaders import (
    KeptEngine,
    put_in_place,
    skip_first_batches,
)

__all__ = ["FastLoaderMixin"]


class FastLoaderMixin:
    """Lets a `transformers.Trainer` train, evaluate and predict with FastLoader.

    Stands before the Trainer among the bases. Datasets, samplers, collators, column removal
    and sharding remain the Trainer's; options of `transformers.TrainingArguments` that were
    left at their defaults are chosen by FastLoader.

    Whole batches are read with ``data_collator=torch.utils.data.default_collate`` and
    ``remove_unused_columns=False``: any other collator wants single samples.
    """

    loader_options: Mapping[str, Any] = MappingProxyType({})
    """Options for the FastLoaders, which go before the Trainer's: ``{"seed": 1}``, say."""

    accelerator: Any

    def get_train_dataloader(self) -> Any:
        """Return the loader of the training set."""
        return self._with_fastloader(super().get_train_dataloader())  # type: ignore[misc]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of an evaluation set.

        Args:
            eval_dataset: A dataset, or its name among several; None for the Trainer's.
        """
        prepared = super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return self._with_fastloader(prepared, **_FOR_ONE_PASS)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of a set to predict."""
        prepared = super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self._with_fastloader(prepared, **_FOR_ONE_PASS)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as `transformers.Trainer.train` does; resumed training stays FastLoader's."""
        with _skipping_with_fastloader():
            return super().train(*args, **kwargs)  # type: ignore[misc]

    def _with_fastloader(self, prepared: Any, **defaults: Any) -> Any:
        if isinstance(prepared, KeptEngine):
            return prepared
        options = {**defaults, **_options_of(prepared.base_dataloader), **self.loader_options}
        ready = put_in_place(self.accelerator, prepared, FastLoader(**options))
        # The Trainer keeps loaders with persistent workers for the next evaluation.
        kept = getattr(self, "_eval_dataloaders", {})
        kept.update({key: ready for key, value in kept.items() if value is prepared})
        return ready


_FOR_ONE_PASS = {"persistent_workers": False}
"""For loaders that the Trainer makes for each evaluation and Accelerate keeps all."""


def _options_of(stock: DataLoader[Any]) -> dict[str, Any]:
    """Return the options for a FastLoader that reads what a loader of the Trainer's reads."""
    options: dict[str, Any] = {
        "dataset": stock.dataset,
        "collate_fn": stock.collate_fn,
        "generator": stock.generator,
        "timeout": stock.timeout,
        "in_order": stock.in_order,
    }
    if isinstance(stock.dataset, IterableDataset):
        options |= {"batch_size": stock.batch_size, "drop_last": stock.drop_last}
    else:
        options["batch_sampler"] = stock.batch_sampler
    if stock.num_workers:
        options |= {
            "num_workers": stock.num_workers,
            "prefetch_factor": stock.prefetch_factor,
            "multiprocessing_context": stock.multiprocessing_context,
        }
    if stock.persistent_workers:
        options["persistent_workers"] = True
    if not stock.pin_memory:
        options["pin_memory"] = False
    # The Trainer's own only seeds the workers by rank, as FastLoader does for each batch.
    if getattr(stock.worker_init_fn, "func", None) is not seed_worker:
        options["worker_init_fn"] = stock.worker_init_fn
    return options


@contextmanager
def _skipping_with_fastloader() -> Iterator[None]:
    """Let the Trainer skip the batches before a checkpoint with our function.

    It knows no other way to say how: it calls the function by its name in its module. For any
    loader that is not ours, ours does what Accelerate's does.
    """
    before = transformers.trainer.skip_first_batches
    transformers.trainer.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        transformers.trainer.skip_first_batches = before
