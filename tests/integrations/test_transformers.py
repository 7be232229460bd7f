"""FastLoader stays in force under the Trainer of Hugging Face Transformers."""

from types import MappingProxyType

import pytest
import torch
from torch.utils.data import default_collate

from fastloader import FastLoader
from fastloader.epochs._iterator import LoaderIterator
from tests.integrations.datasets import BatchedRows, joined

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from fastloader.integrations.transformers import FastLoaderMixin  # noqa: E402


class LabelledRows(BatchedRows):
    def __getitem__(self, index):
        return {"x": super().__getitem__(index), "labels": torch.zeros(1)}

    def get_batch(self, indices):
        rows = super().get_batch(indices)
        return {"x": rows, "labels": torch.zeros_like(rows)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained_on = []

    def forward(self, x, labels):
        if self.training:
            self.trained_on.append([int(row) for row in x])
        output = self.layer(x)
        return {"loss": (output - labels).square().mean(), "logits": output}


class FastTrainer(FastLoaderMixin, transformers.Trainer):
    """A Trainer that remembers the iterators that it was given."""

    def get_train_dataloader(self):
        self.train_loader = super().get_train_dataloader()
        return self.train_loader


class SeededTrainer(FastTrainer):
    loader_options = MappingProxyType({"seed": 7})


def new_trainer(folder, kind=FastTrainer, **options):
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        remove_unused_columns=False,
        save_steps=options.pop("save_steps", 4),
        seed=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        learning_rate=0.0,
        **options,
    )
    return kind(
        Model(),
        arguments,
        data_collator=default_collate,
        train_dataset=LabelledRows(),
        eval_dataset=LabelledRows(8),
    )


def test_a_trainer_by_itself_does_without_fastloader(tmp_path):
    trainer = new_trainer(tmp_path, transformers.Trainer, max_steps=2)

    trainer.train()

    assert trainer.train_dataset.num_batches_read == 0


def test_training_reads_whole_batches_by_fastloader(tmp_path):
    trainer = new_trainer(tmp_path, num_train_epochs=2)

    trainer.train()

    assert isinstance(trainer.train_loader, FastLoader)
    assert isinstance(iter(trainer.train_loader.base_dataloader), LoaderIterator)
    assert trainer.train_dataset.num_batches_read == 12
    assert trainer.train_dataset.num_samples_read == 0
    batches = trainer.model.trained_on
    assert [sorted(joined(epoch)) for epoch in (batches[:6], batches[6:])] == [[*range(24)]] * 2
    assert batches[:6] != batches[6:]


def test_the_order_is_the_trainers(tmp_path):
    orders = []
    for kind in (transformers.Trainer, FastTrainer):
        trainer = new_trainer(tmp_path, kind, num_train_epochs=2)
        trainer.train()
        orders.append(trainer.model.trained_on)

    assert orders[0] == orders[1]


def test_evaluation_and_prediction_read_whole_batches(tmp_path):
    trainer = new_trainer(tmp_path)

    trainer.evaluate()
    output = trainer.predict(LabelledRows(8))

    assert trainer.eval_dataset.num_batches_read == 1
    assert output.predictions.shape == (8, 1)


def test_a_kept_evaluation_loader_is_fastloaders(tmp_path):
    trainer = new_trainer(
        tmp_path, dataloader_persistent_workers=True, dataloader_num_workers=1
    )

    first, second = trainer.get_eval_dataloader(), trainer.get_eval_dataloader()

    assert first is second
    assert isinstance(first, FastLoader)
    assert first.num_workers == 1


def test_options_of_the_class_go_first(tmp_path):
    loader = new_trainer(tmp_path, SeededTrainer).get_train_dataloader()

    assert loader.seed == 7


def test_resumed_training_reads_only_what_is_left(tmp_path):
    whole = new_trainer(tmp_path / "whole", num_train_epochs=1)
    whole.train()
    new_trainer(tmp_path / "parts", max_steps=4).train()
    resumed = new_trainer(tmp_path / "parts", num_train_epochs=1)

    resumed.train(resume_from_checkpoint=True)

    assert resumed.model.trained_on == whole.model.trained_on[4:]
    assert resumed.train_dataset.num_batches_read == 2
