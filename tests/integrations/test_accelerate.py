"""FastLoader stays in force under Accelerate, on one process and on two."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, get_worker_info

import fastloader.sampling
from fastloader import FastLoader
from fastloader.datasets import Augment
from fastloader.epochs._iterator import LoaderIterator
from fastloader.transforms import GaussianNoise
from tests.equality import assert_same
from tests.integrations.datasets import BatchedRows, Rows, Streamed, indices_in
from tests.integrations.ranks import on_two_ranks

accelerate = pytest.importorskip("accelerate")

from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402

from fastloader.integrations.accelerate import (  # noqa: E402
    prepare,
    prepare_data_loader,
    skip_first_batches,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:accelerate",
    "ignore:'set_vital' is deprecated",  # torchdata, with a torch that is newer
)


def new_accelerator(**options):
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    config = accelerate.DataLoaderConfiguration(**options)
    return accelerate.Accelerator(cpu=True, dataloader_config=config)


@pytest.fixture
def accelerator():
    return new_accelerator()


def inner_iterator(ready):
    return iter(ready.base_dataloader)


# One process


def test_accelerates_own_prepare_does_without_fastloader(accelerator):
    ready = accelerator.prepare(FastLoader(BatchedRows(), 4))

    list(ready)

    assert ready.dataset.num_batches_read == 0
    assert not isinstance(inner_iterator(ready), LoaderIterator)


def test_batches_are_read_whole_and_by_fastloader(accelerator):
    ready = prepare(accelerator, FastLoader(BatchedRows(), 4))

    assert indices_in(ready) == list(range(24))
    assert (ready.dataset.num_batches_read, ready.dataset.num_samples_read) == (6, 0)
    assert isinstance(inner_iterator(ready), LoaderIterator)


def test_a_prepared_loader_is_accelerates_and_a_fastloader(accelerator):
    ready = prepare(accelerator, FastLoader(Rows(), 4))

    assert isinstance(ready, DataLoaderShard)
    assert isinstance(ready, FastLoader)
    assert accelerator._dataloaders == [ready]


def test_other_objects_are_prepared_beside_it(accelerator):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    stock = DataLoader(Rows(), 4)

    ready = prepare(accelerator, model, stock, FastLoader(Rows(), 4), optimizer)

    kinds = [type(part).__name__ for part in ready]
    assert kinds == ["Linear", "DataLoaderShard", "_Shard", "AcceleratedOptimizer"]


def test_preparing_twice_changes_nothing(accelerator):
    ready = prepare(accelerator, FastLoader(Rows(), 4))

    assert prepare(accelerator, ready) is ready
    assert accelerator.prepare(ready) is ready
    assert accelerator._dataloaders == [ready]


def test_a_stock_loader_is_left_to_accelerate(accelerator):
    ready = prepare_data_loader(accelerator, DataLoader(Rows(), 4))

    assert type(ready) is DataLoaderShard


def test_the_loader_itself_stays_as_it_was(accelerator):
    loader = FastLoader(Rows(), 4, shuffle=True)
    before = dict(vars(loader))

    prepare(accelerator, loader)

    assert {**vars(loader), "_opener": None} == {**before, "_opener": None}


class WorkerNumbers(Rows):
    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor(-1 if info is None else info.id)


@pytest.mark.multiprocess
@pytest.mark.usefixtures("no_leaks")
def test_workers_are_fastloaders(accelerator):
    loader = FastLoader(WorkerNumbers(8), 4, num_workers=2, persistent_workers=False)
    ready = prepare(accelerator, loader)

    iterator = inner_iterator(ready)
    batches = list(iterator)

    assert isinstance(iterator, LoaderIterator)
    assert torch.cat(batches).tolist() == [0] * 4 + [1] * 4
    accelerator.free_memory()


@pytest.mark.parametrize(
    "config", [{}, {"use_seedable_sampler": True}], ids=["default", "seedable"]
)
def test_order_and_draws_are_those_of_seed_and_epoch(config):
    def loader():
        data = TensorDataset(torch.arange(24.0)[:, None, None, None].expand(24, 1, 4, 4))
        return FastLoader(Augment(data, GaussianNoise(1.0)), 4, shuffle=True, seed=7)

    ready = prepare(new_accelerator(**config), loader())
    plain = loader()

    for _ in range(2):
        for [got], [expected] in zip(ready, plain, strict=True):
            assert torch.equal(got, expected)


def test_options_of_fastloader_hold(accelerator):
    loader = FastLoader(
        BatchedRows(), 4, batch_transform=lambda batch: batch + 100, device_transform=torch.neg
    )

    assert indices_in(prepare(accelerator, loader))[:2] == [-100, -101]


def test_gradient_state_knows_the_last_batch(accelerator):
    ready = prepare(accelerator, FastLoader(BatchedRows(10), 4))

    seen = [
        (accelerator.gradient_state.end_of_dataloader, accelerator.gradient_state.remainder)
        for _ in ready
    ]

    assert seen == [(False, 2), (False, 2), (True, 2)]


def test_gradients_are_accumulated_to_the_end_of_the_pass():
    accelerator = new_accelerator()
    accelerator.gradient_accumulation_steps = 2
    model = torch.nn.Linear(1, 1)
    model, ready = prepare(accelerator, model, FastLoader(BatchedRows(20), 4))
    syncs = []

    for batch in ready:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            syncs.append(accelerator.sync_gradients)

    assert syncs == [False, True, False, True, True]


@pytest.mark.parametrize("how", ["function", "method"])
def test_skipping_goes_on_with_fastloader(accelerator, how):
    ready = prepare(accelerator, FastLoader(BatchedRows(), 4))
    skip = skip_first_batches if how == "function" else accelerator.skip_first_batches

    rest = skip(ready, 2)

    assert len(rest) == 4
    assert indices_in(rest) == list(range(8, 24))
    assert ready.dataset.num_batches_read == 4
    assert indices_in(ready) == list(range(24))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_a_prepared_loader_can_be_copied(accelerator, copied):
    ready = copied(prepare(accelerator, FastLoader(BatchedRows(), 4)))

    assert indices_in(ready) == list(range(24))
    assert ready.dataset.num_batches_read == 6


class Drawing(Rows):
    """Draws from the global generator, which FastLoader seeds for each batch."""

    def __getitem__(self, index):
        return super().__getitem__(index), torch.rand(1)


def test_what_follows_skipped_batches_is_drawn_as_in_the_whole_pass(accelerator):
    def ready():
        return prepare(accelerator, FastLoader(Drawing(), 4, shuffle=True, seed=7))

    whole = list(ready())

    assert_same(list(skip_first_batches(ready(), 2)), whole[2:])


@pytest.mark.parametrize("seed", [None, 7])
def test_a_pass_goes_on_from_its_state(accelerator, seed):
    def ready():
        torch.manual_seed(5)
        return prepare(accelerator, FastLoader(Drawing(), 4, shuffle=True, seed=seed))

    first = ready()
    next_epoch = [list(first), list(first), list(first)][2] if seed is not None else None
    first = ready()
    list(first)
    batches = iter(first)
    seen = [next(batches) for _ in range(2)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    left = list(batches)
    again = ready()
    again.load_state_dict(state)

    assert len(seen) + len(left) == 6
    assert_same(list(again), left)
    assert again.iteration == 2
    if seed is not None:
        assert_same(list(again), next_epoch)


def test_a_state_in_the_last_step_is_that_before_the_next_epoch(accelerator):
    def ready():
        return prepare(accelerator, FastLoader(BatchedRows(), 4, shuffle=True, seed=7))

    first = ready()
    for _ in first:
        state = first.state_dict()
    again = ready()
    again.load_state_dict(state)

    assert indices_in(again) == indices_in(first)


def test_a_saved_run_goes_on_from_the_loaders_state(tmp_path):
    pytest.importorskip("torchdata")

    def ready():
        accelerator = new_accelerator(use_stateful_dataloader=True)
        return accelerator, prepare(accelerator, FastLoader(BatchedRows(), 4, shuffle=True))

    accelerator, first = ready()
    batches = iter(first)
    next(batches)
    accelerator.save_state(tmp_path)
    left = indices_in(batches)
    accelerator, again = ready()
    accelerator.load_state(tmp_path)

    assert indices_in(again) == left
    assert again.dataset.num_batches_read == 5


# Two processes


def prepared_epochs(_rank, make_loader, config, num_epochs=2):
    accelerator = new_accelerator(**config)
    ready = prepare(accelerator, make_loader())
    assert isinstance(inner_iterator(ready), LoaderIterator)
    return [[indices_in([batch]) for batch in ready] for _ in range(num_epochs)], len(ready)


def taking_turns(answers, epoch):
    return [
        batch for pair in zip(*(a[0][epoch] for a in answers), strict=True) for batch in pair
    ]


@pytest.mark.multiprocess
@pytest.mark.parametrize("seed", [None, 7])
def test_two_ranks_share_each_epoch_once(seed):
    def make_loader():
        torch.manual_seed(5)
        return FastLoader(BatchedRows(), 4, shuffle=True, seed=seed)

    answers = on_two_ranks(prepared_epochs, make_loader, {})

    for epoch in range(2):
        assert sorted(indices_in(taking_turns(answers, epoch))) == list(range(24))
    assert answers[0][0][0] != answers[0][0][1]
    assert [length for _, length in answers] == [3, 3]


@pytest.mark.multiprocess
def test_two_ranks_read_the_order_of_the_seed():
    def make_loader():
        return FastLoader(BatchedRows(), 4, shuffle=True, seed=7)

    answers = on_two_ranks(prepared_epochs, make_loader, {})

    plain = make_loader()
    for epoch in range(2):
        assert taking_turns(answers, epoch) == [indices_in([batch]) for batch in plain]


def dispatched(_rank):
    accelerator = new_accelerator(dispatch_batches=True)
    ready = prepare(accelerator, FastLoader(BatchedRows(), 4, shuffle=True, seed=7))
    assert isinstance(ready, DataLoaderDispatcher)
    return [indices_in([batch]) for batch in ready], ready.dataset.num_batches_read


@pytest.mark.multiprocess
def test_the_first_rank_reads_whole_batches_for_all():
    answers = on_two_ranks(dispatched)

    plain = FastLoader(BatchedRows(), 4, shuffle=True, seed=7)
    expected = [indices_in([batch]) for batch in plain]
    assert [
        batch for pair in zip(answers[0][0], answers[1][0], strict=True) for batch in pair
    ] == expected
    assert [num_read for _, num_read in answers] == [6, 0]


def gathered(_rank):
    accelerator = new_accelerator()
    ready = prepare(accelerator, FastLoader(BatchedRows(10), 2))
    return indices_in(accelerator.gather_for_metrics(batch) for batch in ready)


@pytest.mark.multiprocess
def test_metrics_count_each_sample_once():
    answers = on_two_ranks(gathered)

    assert answers == [list(range(10))] * 2


def streamed(_rank):
    ready = prepare(new_accelerator(), FastLoader(Streamed(), 4))
    return indices_in(ready)


@pytest.mark.multiprocess
def test_a_stream_is_shared_once():
    answers = on_two_ranks(streamed)

    assert sorted(answers[0] + answers[1]) == list(range(24))


def resumed(_rank, config):
    def ready():
        torch.manual_seed(5)
        loader = FastLoader(BatchedRows(), 4, shuffle=True)
        return prepare(new_accelerator(**config), loader)

    first = ready()
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    left = [indices_in([batch]) for batch in batches]
    again = ready()
    again.load_state_dict(state)
    skipping = skip_first_batches(ready(), 1)
    return left, [[indices_in([batch]) for batch in loader] for loader in (again, skipping)]


@pytest.mark.multiprocess
def test_two_ranks_go_on_in_their_shares():
    for left, resumptions in on_two_ranks(resumed, {}):
        assert len(left) == 2
        assert resumptions == [left, left]


@pytest.mark.multiprocess
@pytest.mark.parametrize("splits", [False, True], ids=["whole batches", "split batches"])
def test_dispatched_steps_are_skipped_and_resumed(splits):
    config = {"dispatch_batches": True, "split_batches": splits}
    for left, resumptions in on_two_ranks(resumed, config):
        assert len(left) > 1
        assert resumptions == [left, left]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "kind",
    [fastloader.sampling.DistributedSampler, DistributedSampler],
    ids=["fastloader's", "torch's"],
)
def test_a_share_is_not_shared_again(kind):
    def make_loader():
        data = BatchedRows()
        return FastLoader(data, 4, sampler=kind(data))

    answers = on_two_ranks(prepared_epochs, make_loader, {})

    for epoch in range(2):
        assert sorted(indices_in(taking_turns(answers, epoch))) == list(range(24))
    assert answers[0][0][0] != answers[0][0][1]
