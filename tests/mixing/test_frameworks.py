"""Mixtures in the hands of frameworks."""

import logging

import pytest
import torch

from fastloader import FastLoader
from fastloader.errors import SettingsError
from fastloader.mixing import MixedLoader

lightning = pytest.importorskip("lightning.pytorch")
accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    """Remembers what it was trained on."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        name, numbers = batch
        self.seen.append((name, numbers.tolist()))
        return self.layer(numbers[:, None].float()).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


def _mixed(**options):
    sources = {"a": torch.arange(8), "b": torch.arange(100, 104)}
    rules = {"strategy": "weighted", "weights": {"a": 1, "b": 1}, "shuffle": True}
    return MixedLoader(sources, 2, with_names=True, **{**rules, **options})


def _trainer(**options):
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )


@pytest.mark.parametrize("of_loaders", [False, True], ids=["datasets", "loaders"])
def test_lightning_trains_on_each_epoch_of_a_mixture(of_loaders):
    def make():
        if not of_loaders:
            return _mixed()
        loaders = {name: FastLoader(torch.arange(6), 2, num_workers=0) for name in "ab"}
        return MixedLoader(loaders, with_names=True)

    model = Model()
    _trainer(max_epochs=2).fit(model, make())

    alone = make()
    assert model.seen == [(name, b.tolist()) for _ in range(2) for name, b in alone]


class _Save(lightning.Callback):
    """Saves a checkpoint after the third batch of each epoch; the last one stays."""

    def __init__(self, path):
        self._path = path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 2:
            trainer.save_checkpoint(self._path)


def test_lightning_goes_on_in_the_middle_of_an_epoch(tmp_path):
    undisturbed, resumed = Model(), Model()
    path = tmp_path / "middle.ckpt"
    _trainer(max_epochs=3, callbacks=[_Save(path)]).fit(undisturbed, _mixed())

    _trainer(max_epochs=3).fit(resumed, _mixed(), ckpt_path=path, weights_only=False)

    assert resumed.seen == undisturbed.seen[2 * len(_mixed()) + 3 :]


@pytest.fixture
def accelerator():
    accelerator = accelerate.Accelerator(cpu=True)
    yield accelerator
    for state in (accelerate.state.AcceleratorState, accelerate.state.GradientState):
        state._reset_state()
    accelerate.state.PartialState._reset_state()


def test_samples_are_not_shared_out_twice_beside_accelerate(accelerator, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert len(_mixed(distributed="auto")) == len(_mixed())
    with pytest.raises(SettingsError, match="Accelerate shares out every loader"):
        _mixed(distributed=True)


def test_accelerate_prepares_the_loader_within(accelerator):
    prepared = accelerator.prepare(_mixed().loader)

    ours = [batch for names, batch in _mixed().loader]
    assert [batch.tolist() for names, batch in prepared] == [batch.tolist() for batch in ours]
