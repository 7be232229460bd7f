"""FastLoader under PyTorch Lightning, which keeps it by itself.

Only its advice on the number of workers has to be taken with care: it asks for as many as
there are CPUs, also for a loader that reads whole batches and needs none::

    from fastloader.integrations.lightning import AcceptChosenWorkers

    trainer = Trainer(callbacks=[AcceptChosenWorkers()])
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fastloader._loader import FastLoader
from fastloader.mixing import MixedLoader

__all__ = ["AcceptChosenWorkers", "StatsCallback"]


class StatsCallback(Callback):  # type: ignore[misc]
    """Logs what the training loaders measure of themselves, to all loggers of the trainer.

    The numbers are those of the epoch so far, every ``log_every_n_steps`` of the trainer (never if
    that is 0) and at the end: see `fastloader.stats.StatsSnapshot`.

    Args:
        prefix: Put before each name; with several loaders, their names or numbers follow it.
    """

    def __init__(self, prefix: str = "loader/") -> None:
        self._prefix = prefix

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Log, if it is time to.

        Args:
            trainer: Whose loaders and loggers they are.
            pl_module: Not used.
            outputs: Not used.
            batch: Not used.
            batch_idx: Number of the batch in its epoch.
        """
        every = trainer.log_every_n_steps
        if not every or ((batch_idx + 1) % every and not trainer.is_last_batch):
            return
        for name, loader in _named_loaders(trainer.train_dataloader, self._prefix):
            values = loader.stats.snapshot("epoch").as_dict(name)
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)


def _named_loaders(
    loaders: Any, prefix: str
) -> list[tuple[str, FastLoader[Any] | MixedLoader]]:
    """Return the loaders of this package among those that a trainer was given."""
    if isinstance(loaders, FastLoader | MixedLoader):
        return [(prefix, loaders)]
    if isinstance(loaders, Mapping):
        parts = list(loaders.items())
    elif isinstance(loaders, Sequence):
        parts = list(enumerate(loaders))
    else:
        return []
    return [found for key, part in parts for found in _named_loaders(part, f"{prefix}{key}/")]


class AcceptChosenWorkers(Callback):  # type: ignore[misc]
    """Keeps Lightning from advising another number of workers than FastLoader chose.

    The advice is about the number alone, so it is not given for any loader of the process from
    then on: see `fastloader.FastLoader.explain` for the reason of the number.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Silence the advice before loaders are looked at."""
        warnings.filterwarnings("ignore", message=".*does not have many workers")
