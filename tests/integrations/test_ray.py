"""FastLoader stays in force under Ray Train."""

import sys

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, SubsetRandomSampler

from fastloader import FastLoader
from fastloader.epochs._iterator import LoaderIterator
from fastloader.errors import SettingsError
from tests.integrations.datasets import BatchedRows, Rows, indices_in, joined

ray = pytest.importorskip("ray")
pytest.importorskip("ray.train.torch")

from fastloader.integrations.ray import prepare_data_loader  # noqa: E402

# Ray's own part is played by what it would be asked for: rank and device.


class Context:
    def __init__(self, rank, world_size):
        self.rank = rank
        self.world_size = world_size

    def get_world_size(self):
        return self.world_size

    def get_world_rank(self):
        return self.rank


@pytest.fixture
def on_rank(monkeypatch):
    def be(rank, world_size=2):
        monkeypatch.setattr(ray.train, "get_context", lambda: Context(rank, world_size))
        monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))

    return be


@pytest.mark.parametrize("options", [{}, {"seed": 7}], ids=["default", "seed"])
def test_two_ranks_share_each_epoch_once(on_rank, options):
    epochs = []
    for rank in range(2):
        on_rank(rank)
        ready = prepare_data_loader(FastLoader(BatchedRows(), 4, shuffle=True, **options))
        epochs.append([indices_in(ready) for _ in range(2)])
        assert (ready.dataset.num_batches_read, ready.dataset.num_samples_read) == (6, 0)

    for first, second in zip(*epochs, strict=True):
        assert sorted(first + second) == list(range(24))
    assert epochs[0][0] != epochs[0][1]


def test_a_prepared_loader_is_a_fastloader_with_its_options(on_rank):
    on_rank(1)
    loader = FastLoader(
        BatchedRows(), 4, shuffle=True, drop_last=True, seed=3, on_error="skip", num_workers=0
    )

    ready = prepare_data_loader(loader)

    assert isinstance(iter(ready), LoaderIterator)
    for name in ("batch_size", "drop_last", "seed", "on_error", "num_workers", "transport"):
        assert getattr(ready, name) == getattr(loader, name)
    assert ready.device == torch.device("cpu")
    assert loader.device is None


def test_one_rank_reads_everything_in_the_order_of_the_loader(on_rank):
    on_rank(0, world_size=1)

    ready = prepare_data_loader(FastLoader(BatchedRows(), 4, shuffle=True, seed=3))

    assert indices_in(ready) == indices_in(FastLoader(BatchedRows(), 4, shuffle=True, seed=3))


def test_an_epoch_set_by_hand_is_kept(on_rank):
    on_rank(0)
    orders = []

    for _ in range(2):
        ready = prepare_data_loader(FastLoader(BatchedRows(), 4, shuffle=True))
        ready.sampler.set_epoch(5)
        orders.append(indices_in(ready))

    assert orders[0] == orders[1]


def test_a_share_is_not_shared_again(on_rank):
    on_rank(1)
    data = BatchedRows()
    own = DistributedSampler(data, 2, 1, shuffle=False)

    ready = prepare_data_loader(FastLoader(data, 4, sampler=own))

    assert indices_in(ready) == list(range(1, 24, 2))


def test_evaluation_reads_each_sample_once(on_rank):
    seen = []
    for rank in range(2):
        on_rank(rank)
        seen += indices_in(prepare_data_loader(FastLoader(BatchedRows(7), 4)))

    assert sorted(seen) == list(range(7))


def test_an_order_of_torch_is_shared(on_rank):
    seen = []
    for rank in range(2):
        on_rank(rank)
        batches = BatchSampler(SubsetRandomSampler(range(8)), 2, drop_last=False)
        seen += indices_in(prepare_data_loader(FastLoader(Rows(), batch_sampler=batches)))

    assert sorted(seen) == list(range(8))


def test_an_order_that_cannot_be_shared_is_refused(on_rank):
    on_rank(0)

    with pytest.raises(SettingsError, match="add_dist_sampler=False"):
        prepare_data_loader(FastLoader(BatchedRows(), batch_sampler=[[0], [1]]))


# A real cluster


def train(config):
    """Runs in each worker of Ray Train, which knows nothing of this module."""
    import ray.train
    import ray.train.torch

    from fastloader import FastLoader
    from fastloader.integrations.ray import prepare_data_loader

    ready = prepare_data_loader(FastLoader(config["dataset"], 4, shuffle=True, seed=7))
    epochs = [[int(index) for batch in ready for index in batch] for _ in range(2)]
    stock = ray.train.torch.prepare_data_loader(FastLoader(config["dataset"], 4, shuffle=True))
    before = ready.dataset.num_batches_read
    list(stock)
    torch.save(
        {
            "kind": type(ready).__name__,
            "epochs": epochs,
            "read by fastloader": before,
            "read by stock": ready.dataset.num_batches_read - before,
        },
        f"{config['folder']}/{ray.train.get_context().get_world_rank()}.pt",
    )
    ray.train.report({})


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.library_threads
@pytest.mark.filterwarnings("ignore")  # of Ray's processes, threads and sockets
def test_a_local_cluster_trains(tmp_path, monkeypatch):
    from ray import cloudpickle
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # a process less
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cloudpickle.register_pickle_by_value(sys.modules[BatchedRows.__module__])
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20)
    try:
        TorchTrainer(
            train,
            train_loop_config={"dataset": BatchedRows(), "folder": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=str(tmp_path / "runs")),
        ).fit()
    finally:
        ray.shutdown()

    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for answer in (first, second):
        assert answer["kind"] == "FastLoader"
        assert answer["read by fastloader"] == 6
        assert answer["read by stock"] == 0
    for epochs in zip(first["epochs"], second["epochs"], strict=True):
        assert sorted(joined(epochs)) == list(range(24))
    assert first["epochs"][0] != first["epochs"][1]
