"""FastLoader under PyTorch Lightning, which keeps it by itself.

Only its advice on the number of workers has to be taken with care: it asks for as many as
there are CPUs, also for a loader that reads whole batches and needs none::

    from fastloader.integrations.lightning import AcceptChosenWorkers

    trainer = Trainer(callbacks=[AcceptChosenWorkers()])
"""

import warnings

from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["AcceptChosenWorkers"]


class AcceptChosenWorkers(Callback):  # type: ignore[misc]
    """Keeps Lightning from advising another number of workers than FastLoader chose.

    The advice is about the number alone, so it is not given for any loader of the process from
    then on: see `fastloader.FastLoader.explain` for the reason of the number.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Silence the advice before loaders are looked at.

        Args:
            trainer: Not used.
            pl_module: Not used.
            stage: Not used.
        """
        warnings.filterwarnings("ignore", message=".*does not have many workers")
