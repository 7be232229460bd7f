"""The next epoch's first batches are made while the last ones of this are taken: right, or not at all."""

import gc

import pytest
import torch
from torch.utils.data import DataLoader

from fastloader import FastLoader
from tests.engine.datasets import Faulty, Growing, Images, Live

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("no_leaks")]


class Numbers(Images):
    def __getitem__(self, index):
        return index


class Shares(Numbers):
    """Reads a number that the main process may change at any time."""

    def __init__(self, length):
        super().__init__(length)
        self.offset = torch.zeros((), dtype=torch.int64).share_memory_()

    def __getitem__(self, index):
        return index + self.offset.item()


class FaultyLater(Images):
    """Cannot be read twice."""

    seen = 0

    def __getitem__(self, index):
        if index == 0:
            self.seen += 1
            if self.seen == 3:
                raise KeyError("third time")
        return index


def pool_of(loader):
    return loader._opener.keeper._idle


def head_start_of(loader):
    head_start = pool_of(loader).head_start
    return 0 if head_start is None else len(head_start.pending)


def epoch_of(loader):
    return [index for batch in loader for index in batch.tolist()]


@pytest.fixture
def make_loader():
    loaders = []

    def make(dataset, **options):
        options = {"num_workers": 2, **options}
        if options[
            "num_workers"
        ]:  # then how many are ahead does not depend on how quick they are
            options.setdefault("prefetch_factor", 2)
        loaders.append(FastLoader(dataset, 4, **options))
        return loaders[-1]

    yield make
    loaders.clear()
    gc.collect()


@pytest.mark.parametrize("options", [{}, {"in_order": False}], ids=str)
@pytest.mark.parametrize("source", ["global", "generator", "seed", "in turn"])
def test_orders_are_those_without_a_head_start(make_loader, source, options):
    def order_options():
        torch.manual_seed(7)
        return {
            "global": {"shuffle": True},
            "generator": {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
            "seed": {"shuffle": True, "seed": 5},
            "in turn": {},
        }[source]

    plain = make_loader(Numbers(60), num_workers=0, **order_options())
    expected = [epoch_of(plain) for _ in range(5)]
    after = torch.get_rng_state()
    loader = make_loader(Numbers(60), **order_options(), **options)
    found, started = [], []
    for _ in range(5):
        found.append(epoch_of(loader))
        started.append(head_start_of(loader))

    if options:
        expected, found = [list(map(sorted, epochs)) for epochs in (expected, found)]
    assert found == expected
    assert torch.equal(torch.get_rng_state(), after)
    assert started == [0, 4, 4, 4, 4]


def test_the_global_generator_is_left_as_torch_leaves_it(make_loader):
    torch.manual_seed(1)
    stock = DataLoader(Numbers(40), 4, shuffle=True)
    expected = [[index for batch in stock for index in batch.tolist()] for _ in range(3)]
    after = torch.get_rng_state()
    torch.manual_seed(1)
    loader = make_loader(Numbers(40), shuffle=True)

    assert [epoch_of(loader) for _ in range(3)] == expected
    assert torch.equal(torch.get_rng_state(), after)


def test_a_wrong_forecast_is_dropped_and_is_the_last_one(make_loader):
    torch.manual_seed(1)
    stock = DataLoader(Numbers(40), 4, shuffle=True)
    loader = make_loader(Numbers(40), shuffle=True)
    expected, found = [], []
    for epochs, any_loader in ((expected, stock), (found, loader)):
        torch.manual_seed(2)
        for _ in range(4):
            epochs.append([index for batch in any_loader for index in batch.tolist()])
            torch.rand(3)  # as a model with dropout does

    assert found == expected
    assert not pool_of(loader).is_predictable
    assert head_start_of(loader) == 0


def test_an_epoch_that_is_set_before_the_next_pass_is_read(make_loader):
    loader = make_loader(Numbers(40), shuffle=True, seed=3)
    epochs = [epoch_of(loader) for _ in range(3)]

    loader.set_epoch(1)

    assert epoch_of(loader) == epochs[1]
    assert epoch_of(loader) == epochs[2]


def test_a_state_is_gone_on_from_as_if_nothing_had_been_sent(make_loader):
    loader = make_loader(Numbers(40), shuffle=True, seed=3)
    expected = [epoch_of(loader) for _ in range(4)]
    other = make_loader(Numbers(40), shuffle=True, seed=3)
    for _ in range(2):
        epoch_of(other)
    other.load_state_dict(other.state_dict())

    assert [epoch_of(other) for _ in range(2)] == expected[2:]


def test_a_change_of_the_live_state_reaches_the_first_batch(make_loader):
    dataset = Live(40)
    loader = make_loader(dataset)
    for _ in range(2):
        epoch_of(loader)
    assert head_start_of(loader) == 4

    dataset.offset = 1000

    assert epoch_of(loader) == list(range(1000, 1040))


def test_a_change_of_the_dataset_reaches_the_first_batch(make_loader):
    dataset = Shares(40)
    loader = make_loader(dataset)
    for _ in range(2):
        epoch_of(loader)

    dataset.offset.fill_(500)

    assert epoch_of(loader) == list(range(500, 540))


def test_an_error_comes_with_its_own_epoch(make_loader):
    loader = make_loader(FaultyLater(40), num_workers=1)
    for _ in range(2):
        assert epoch_of(loader) == list(range(40))

    with pytest.raises(KeyError, match="third time"):
        next(iter(loader))


def test_samples_are_skipped_once_for_each_epoch(make_loader):
    loader = make_loader(Faulty(16, faulty=(1,)), on_error="skip")
    for epoch in range(1, 5):
        for _ in loader:
            pass
        assert len(loader.skipped) == epoch


def test_batches_may_outgrow_their_slots(make_loader):
    loader = FastLoader(Growing(24), 1, num_workers=2)

    for _ in range(4):
        assert [batch[0, 0].item() for batch in loader] == list(range(24))


@pytest.mark.parametrize("num_taken", [1, 8, 9])
def test_an_epoch_that_is_broken_off_leaves_no_slot_lent(make_loader, num_taken):
    loader = make_loader(Numbers(40), shuffle=True, seed=3)
    for _ in range(3):
        epoch_of(loader)
    for _ in range(3):
        for number, _ in enumerate(loader, 1):
            if number == num_taken:
                break
    epoch_of(loader)
    loader.set_epoch(90)  # what was sent for the next one is dropped, too
    epoch_of(loader)
    pool = pool_of(loader)
    pool.cancel_head_start()

    loader.set_epoch(100)
    epoch_of(loader)
    pool.cancel_head_start()
    pool.wait(0.2)

    assert pool.arena.num_slots <= 2 * 4 + 2


def test_a_worker_that_dies_between_two_epochs_is_replaced(make_loader):
    loader = make_loader(Numbers(40), on_worker_death="restart")
    for _ in range(2):
        epoch_of(loader)
    pool_of(loader).processes[1].kill()
    pool_of(loader).processes[1].join()

    assert epoch_of(loader) == list(range(40))
    assert epoch_of(loader) == list(range(40))
