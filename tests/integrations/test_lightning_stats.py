"""Lightning's loggers get what loaders measure of themselves."""

import logging

import pytest
import torch

from fastloader import FastLoader, MixedLoader

lightning = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from fastloader.integrations.lightning import StatsCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*does not have many workers"
)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    """Learns nothing."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        rows = batch["a"] if isinstance(batch, dict) else batch
        return self.layer(rows).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Notes(CSVLogger):
    """Keeps what it is given."""

    def __init__(self, folder):
        super().__init__(folder)
        self.found = []

    def log_metrics(self, metrics, step=None):
        self.found.append((step, metrics))


def fit(folder, loaders, log_every_n_steps=3):
    notes = Notes(folder)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=notes,
        callbacks=[StatsCallback()],
        log_every_n_steps=log_every_n_steps,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loaders)
    return notes.found


def test_numbers_of_each_epoch_are_logged(tmp_path):
    found = fit(tmp_path, FastLoader(torch.zeros(8, 1), 2, num_workers=0))

    logged = [(step, metrics["loader/num_batches"]) for step, metrics in found]
    assert logged == [(3, 3), (4, 4), (7, 3), (8, 4)]


def test_nothing_is_logged_where_the_trainer_logs_nothing(tmp_path):
    loader = FastLoader(torch.zeros(8, 1), 2, num_workers=0)

    assert not fit(tmp_path, loader, log_every_n_steps=0)


def test_several_loaders_are_told_apart_by_name(tmp_path):
    loaders = {name: FastLoader(torch.zeros(8, 1), 2, num_workers=0) for name in "ab"}

    found = fit(tmp_path, loaders)

    assert any("loader/a/num_samples" in metrics for _, metrics in found)
    assert any("loader/b/num_samples" in metrics for _, metrics in found)


@pytest.mark.parametrize(
    "mixed",
    [
        MixedLoader({"a": torch.zeros(8, 1), "b": torch.zeros(4, 1)}, 2, num_workers=0),
        MixedLoader({name: FastLoader(torch.zeros(8, 1), 2, num_workers=0) for name in "ab"}),
    ],
    ids=["datasets", "loaders"],
)
def test_a_mixture_tells_of_its_sources(tmp_path, mixed):
    found = fit(tmp_path, mixed)

    _, last = found[-1]
    assert last["loader/num_batches"] == len(mixed)
    assert last["loader/source_a_num_samples"] == 8
    assert last["loader/source_b_sample_share"] > 0
