"""Ignite and MONAI keep FastLoader, also where they make a loader anew."""

import pytest
import torch

from fastloader import FastLoader
from tests.integrations.datasets import BatchedRows, indices_in, joined

ignite_engine = pytest.importorskip("ignite.engine")

from ignite.engine.deterministic import (  # noqa: E402
    DeterministicEngine,
    ReproducibleBatchSampler,
    update_dataloader,
)


def test_an_engine_reads_whole_batches():
    seen = []
    loader = FastLoader(BatchedRows(), 4)

    ignite_engine.Engine(lambda engine, batch: seen.extend(indices_in([batch]))).run(
        loader, max_epochs=2
    )

    assert seen == [*range(24)] * 2
    assert (loader.dataset.num_batches_read, loader.dataset.num_samples_read) == (12, 0)


def test_a_loader_made_anew_has_the_same_options():
    loader = FastLoader(
        BatchedRows(), 5, shuffle=True, seed=3, watchdog_seconds=7.0, on_error="skip"
    )

    again = update_dataloader(loader, ReproducibleBatchSampler(loader.batch_sampler))

    assert type(again) is FastLoader
    options = {name for name in vars(loader) if not name.startswith("_")}
    for name in options - {"sampler", "batch_sampler", "batch_size", "settings"}:
        assert getattr(again, name) == getattr(loader, name), name


def determined(first_iteration, **options):
    """Return the samples of each iteration of two epochs, from one on."""
    seen = {}
    engine = DeterministicEngine(
        lambda engine, batch: seen.update({engine.state.iteration: indices_in([batch])})
    )
    torch.manual_seed(12)
    if first_iteration:
        engine.load_state_dict({
            "epoch_length": 6,
            "max_epochs": 2,
            "iteration": first_iteration,
            "rng_states": None,
        })
    engine.run(FastLoader(BatchedRows(), 4, shuffle=True, **options), max_epochs=2)
    return seen


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}], ids=["auto", "no workers"])
def test_a_deterministic_engine_resumes_in_its_order(options):
    whole = determined(0, **options)

    assert sorted(joined(whole[step] for step in range(1, 7))) == list(range(24))
    assert determined(4, **options) == {step: whole[step] for step in range(5, 13)}


def test_monai_trains():
    engines = pytest.importorskip("monai.engines")
    seen = []
    network = torch.nn.Linear(1, 1)

    def prepare(batch, device=None, non_blocking=False, **options):
        seen.append(indices_in([batch]))
        return batch, batch

    loader = FastLoader(BatchedRows(), 4)
    engines.SupervisedTrainer(
        device="cpu",
        max_epochs=2,
        train_data_loader=loader,
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), 0.0),
        loss_function=torch.nn.MSELoss(),
        prepare_batch=prepare,
    ).run()

    assert joined(seen) == [*range(24)] * 2
    assert loader.dataset.num_batches_read == 12
