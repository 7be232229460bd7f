"""Lightning keeps FastLoader, also where it makes a loader anew."""

import logging
import os

import pytest
import torch
from torch.utils.data import DistributedSampler, SequentialSampler

from fastloader import FastLoader
from tests.integrations.datasets import BatchedRows, indices_in, joined
from tests.integrations.ranks import on_two_ranks

lightning = pytest.importorskip("lightning.pytorch")

from lightning.fabric import Fabric  # noqa: E402
from lightning.fabric.plugins.environments import TorchElasticEnvironment  # noqa: E402

from fastloader.integrations.lightning import AcceptChosenWorkers  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:You defined a .validation_step",
)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    """Remembers the samples of each epoch and the loaders that they came from."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained_on = {}
        self.seen = []
        self.loader = None

    def on_train_epoch_start(self):
        self.loader = self.trainer.train_dataloader

    def training_step(self, batch, batch_idx):
        self.trained_on.setdefault(self.current_epoch, []).append(indices_in([batch]))
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx):
        self.seen += indices_in([batch])

    def predict_step(self, batch, batch_idx):
        self.seen += indices_in([batch])
        return batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


def new_trainer(**options):
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"devices": 1, "enable_checkpointing": False, "limit_val_batches": 0, **options},
    )


def test_training_and_validation_read_whole_batches():
    model, train, validation = Model(), BatchedRows(), BatchedRows(8)

    new_trainer(max_epochs=2, limit_val_batches=1.0, num_sanity_val_steps=0).fit(
        model, FastLoader(train, 4, shuffle=True), FastLoader(validation, 4)
    )

    assert [sorted(joined(model.trained_on[e])) for e in (0, 1)] == [[*range(24)]] * 2
    assert model.trained_on[0] != model.trained_on[1]
    assert model.seen == [*range(8)] * 2
    assert (train.num_batches_read, train.num_samples_read) == (12, 0)
    assert (validation.num_batches_read, validation.num_samples_read) == (4, 0)


def test_the_order_is_that_of_the_loader_by_itself():
    model = Model()

    new_trainer(max_epochs=2).fit(model, FastLoader(BatchedRows(), 4, shuffle=True, seed=7))

    loader = FastLoader(BatchedRows(), 4, shuffle=True, seed=7)
    for epoch in range(2):
        assert model.trained_on[epoch] == [indices_in([batch]) for batch in loader]


def test_a_loader_made_anew_has_the_same_options():
    loader = FastLoader(
        BatchedRows(), 5, num_workers=0, pin_memory=False, seed=3, watchdog_seconds=7.0
    )
    model, trainer = Model(), new_trainer()

    trainer.predict(model, loader)

    again = trainer.predict_dataloaders
    assert model.seen == [*range(24)]
    assert again is not loader
    options = {name for name in vars(loader) if not name.startswith("_")}
    for name in options - {"sampler", "batch_sampler", "batch_size"}:
        assert vars(again)[name] == vars(loader)[name], name
    assert again.dataset.num_batches_read == 5


def test_overfitting_repeats_the_first_batches_in_order():
    model = Model()

    with pytest.warns(UserWarning, match="turning off the train dataloader shuffling"):
        new_trainer(max_epochs=2, overfit_batches=2).fit(
            model, FastLoader(BatchedRows(), 4, shuffle=True)
        )

    assert model.trained_on == {epoch: [[0, 1, 2, 3], [4, 5, 6, 7]] for epoch in (0, 1)}
    assert isinstance(model.loader, FastLoader)
    assert isinstance(model.loader.sampler, SequentialSampler)


@pytest.fixture
def many_cpus(monkeypatch):
    monkeypatch.setattr("lightning.fabric.utilities.data._num_cpus_available", lambda: 16)


def fit_and_validate(**options):
    new_trainer(max_epochs=1, limit_val_batches=1.0, **options).fit(
        Model(), FastLoader(BatchedRows(), 4, shuffle=True), FastLoader(BatchedRows(), 4)
    )


@pytest.mark.usefixtures("many_cpus")
def test_lightning_asks_for_workers_where_none_are_needed():
    with pytest.warns(UserWarning, match="does not have many workers"):
        fit_and_validate()


@pytest.mark.usefixtures("many_cpus")
def test_lightning_has_nothing_to_say_of_chosen_settings():
    fit_and_validate(callbacks=[AcceptChosenWorkers()])


class SaveAt(lightning.Callback):
    """Saves a checkpoint after a step."""

    def __init__(self, step, path):
        self.step = step
        self.path = path

    def on_train_batch_end(self, trainer, *unused):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.multiprocess)])
@pytest.mark.parametrize("step", [4, 9], ids=["first epoch", "second epoch"])
def test_a_run_goes_on_at_the_batch_of_its_checkpoint(tmp_path, step, num_workers):
    def loader():
        options = {"num_workers": num_workers, "persistent_workers": False}
        return FastLoader(BatchedRows(), 4, shuffle=True, seed=7, **options)

    path, whole, rest = tmp_path / "at.ckpt", Model(), Model()
    new_trainer(max_epochs=3, callbacks=[SaveAt(step, path)]).fit(whole, loader())
    again = loader()
    new_trainer(max_epochs=3).fit(rest, again, ckpt_path=path)

    steps = joined(whole.trained_on[epoch] for epoch in range(3))
    assert joined(rest.trained_on.values()) == steps[step:]
    if not num_workers:
        assert again.dataset.num_batches_read == 18 - step


class SaveAfter(lightning.Callback):
    """Saves a checkpoint at the end of an epoch."""

    def __init__(self, epoch, path):
        self.epoch = epoch
        self.path = path

    def on_train_epoch_end(self, trainer, *unused):
        if trainer.current_epoch == self.epoch:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.multiprocess)])
def test_a_run_goes_on_with_the_epoch_after_its_checkpoint(tmp_path, num_workers):
    def loader():
        options = {"num_workers": num_workers, "persistent_workers": False}
        return FastLoader(BatchedRows(), 4, shuffle=True, seed=7, **options)

    path, whole, rest = tmp_path / "after.ckpt", Model(), Model()
    new_trainer(max_epochs=3, callbacks=[SaveAfter(0, path)]).fit(whole, loader())
    new_trainer(max_epochs=3).fit(rest, loader(), ckpt_path=path)

    assert [rest.trained_on[epoch] for epoch in (1, 2)] == [
        whole.trained_on[epoch] for epoch in (1, 2)
    ]


# Two processes


def environment():
    os.environ.update(TORCHELASTIC_RUN_ID="test", GROUP_RANK="0")
    return TorchElasticEnvironment()


def fitted(_rank, options):
    model = Model()
    trainer = new_trainer(devices=2, strategy="ddp", max_epochs=2, plugins=[environment()])
    trainer.fit(model, FastLoader(BatchedRows(), 4, shuffle=True, **options))
    loader = model.loader
    assert isinstance(loader, FastLoader)
    assert isinstance(loader.sampler, DistributedSampler)
    assert loader.dataset.num_samples_read == 0
    return model.trained_on, loader.num_workers, loader.seed


@pytest.mark.multiprocess
@pytest.mark.parametrize("options", [{}, {"seed": 7}], ids=["default", "seed"])
def test_two_ranks_share_each_epoch_once(options):
    answers = on_two_ranks(fitted, options, with_group=False)

    for epoch in range(2):
        both = [trained_on[epoch] for trained_on, *_ in answers]
        assert sorted(joined(both[0] + both[1])) == list(range(24))
    assert answers[0][0][0] != answers[0][0][1]
    assert [seed for *_, seed in answers] == [options.get("seed")] * 2


def set_up(_rank):
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", plugins=[environment()])
    fabric.launch()
    ready = fabric.setup_dataloaders(FastLoader(BatchedRows(), 4, shuffle=True))
    assert isinstance(ready._dataloader, FastLoader)
    epochs = [indices_in(ready), indices_in(ready)]
    return epochs, ready._dataloader.dataset.num_batches_read


@pytest.mark.multiprocess
def test_fabric_shares_each_epoch_once():
    answers = on_two_ranks(set_up, with_group=False)

    for epoch in range(2):
        assert sorted(answers[0][0][epoch] + answers[1][0][epoch]) == list(range(24))
    assert answers[0][0][0] != answers[0][0][1]
    assert [num_read for _, num_read in answers] == [6, 6]
