"""A map-style loader goes on where its consumer was, in the order it had."""

import json
import pickle

import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fastloader import FastLoader
from fastloader.errors import ResumeError
from fastloader.sampling import ShuffledSampler
from fastloader.stages import LostBatchError
from tests.resume.datasets import (
    Countdown,
    Counted,
    Drawing,
    Numbers,
    Pairs,
    SlowFirst,
    UnpicklableCountdown,
)


def generator(seed=7):
    return torch.Generator().manual_seed(seed)


ORDERS = {
    "in order": lambda **o: FastLoader(Numbers(), 4, **o),
    "seed": lambda **o: FastLoader(Numbers(), 4, shuffle=True, seed=5, **o),
    "generator": lambda **o: FastLoader(Numbers(), 4, shuffle=True, generator=generator(), **o),
    "global generator": lambda **o: FastLoader(Numbers(), 4, shuffle=True, **o),
    "sampler's generator": lambda **o: FastLoader(
        Numbers(), 4, sampler=RandomSampler(range(40), generator=generator()), **o
    ),
    "with replacement": lambda **o: FastLoader(
        Numbers(),
        4,
        sampler=RandomSampler(
            range(40), replacement=True, num_samples=90, generator=generator()
        ),
        **o,
    ),
    "weights": lambda **o: FastLoader(
        Numbers(), 4, sampler=WeightedRandomSampler([1.0] * 40, 30), **o
    ),
    "subset": lambda **o: FastLoader(Numbers(), 4, sampler=SubsetRandomSampler(range(22)), **o),
    "rank": lambda **o: FastLoader(
        Numbers(), 4, sampler=DistributedSampler(Numbers(), num_replicas=2, rank=1), **o
    ),
    "pairs": lambda **o: FastLoader(Numbers(), batch_sampler=Pairs(40), **o),
    "stateful sampler": lambda **o: FastLoader(Numbers(), 4, sampler=Countdown(40), **o),
    "epochs of a length": lambda **o: FastLoader(
        Numbers(), 4, shuffle=True, samples_per_epoch=50, **o
    ),
    "epochs of batches": lambda **o: FastLoader(
        Numbers(), 4, shuffle=True, batches_per_epoch=9, **o
    ),
    "no batches": lambda **o: FastLoader(Numbers(), None, shuffle=True, **o),
    "drop last": lambda **o: FastLoader(Numbers(39), 4, shuffle=True, drop_last=True, **o),
}
SAVES_ITS_GENERATOR = ["in order", "seed", "generator", "sampler's generator", "rank"]


def plain(batches):
    return [torch.as_tensor(batch).tolist() for batch in batches]


def flat(batches):
    return [index for batch in batches for index in batch]


def take(iterator, count):
    return plain(next(iterator) for _ in range(count))


def saved(loader):
    return pickle.loads(pickle.dumps(loader.state_dict()))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_what_is_left_comes_in_the_same_order(order, count):
    make = ORDERS[order]
    loader = make(num_workers=0)
    iterator = iter(loader)
    take(iterator, count)
    state = saved(loader)
    left = plain(iterator)
    torch.manual_seed(99)
    fresh = make(num_workers=0)

    fresh.load_state_dict(state)

    assert plain(fresh) == left


@pytest.mark.multiprocess
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_batches_made_ahead_by_workers_are_not_lost(order, workers):
    make = ORDERS[order]
    context = "fork" if workers == "processes" else None
    loader = make(
        num_workers=2, workers=workers, prefetch_factor=3, multiprocessing_context=context
    )
    iterator = iter(loader)
    take(iterator, 3)
    state = saved(loader)
    left = plain(iterator)
    fresh = make(num_workers=0)

    fresh.load_state_dict(state)

    assert plain(fresh) == left


@pytest.mark.parametrize("order", SAVES_ITS_GENERATOR)
def test_the_epochs_after_are_those_of_an_undisturbed_run(order):
    make = ORDERS[order]
    undisturbed = make(num_workers=0)
    epochs = [plain(undisturbed) for _ in range(4)]
    loader = make(num_workers=0)
    plain(loader)
    take(iter(loader), 2)
    state = saved(loader)
    fresh = make(num_workers=0)

    fresh.load_state_dict(state)

    assert [plain(fresh) for _ in range(3)] == [epochs[1][2:], epochs[2], epochs[3]]


@pytest.mark.parametrize("num_done", [0, 9 + 2, 2 * 9])
def test_epochs_of_a_length_go_on_in_the_order_of_the_run_that_was_saved(num_done):
    make = ORDERS["epochs of batches"]
    undisturbed = make(num_workers=0)
    epochs = [flat(plain(undisturbed)) for _ in range(4)]
    torch.manual_seed(torch.initial_seed())
    loader = make(num_workers=0)
    for batch in range(num_done):
        if batch % 9 == 0:
            iterator = iter(loader)
        next(iterator)
    if num_done % 9 == 0 and num_done:
        assert next(iterator, None) is None
    state = saved(loader)
    torch.manual_seed(99)
    fresh = make(num_workers=0)

    fresh.load_state_dict(state)

    epoch, skipped = divmod(num_done, 9)
    left = [epochs[epoch][4 * skipped :], *epochs[epoch + 1 :]]
    assert [flat(plain(fresh)) for _ in left] == left


def test_a_sampler_of_this_package_gets_the_seed_that_was_saved():
    def make(seed):
        return FastLoader(Numbers(), 4, sampler=ShuffledSampler(40, seed), num_workers=0)

    loader = make(3)
    iterator = iter(loader)
    take(iterator, 4)
    state = saved(loader)
    fresh = make(8)

    fresh.load_state_dict(state)

    assert plain(fresh) == plain(iterator)


def test_an_epoch_can_be_resumed_again_and_again():
    make = ORDERS["generator"]
    [epoch] = [plain(make(num_workers=0))]
    seen, state = [], make(num_workers=0).state_dict()
    for _ in range(5):
        loader = make(num_workers=0)
        loader.load_state_dict(state)
        seen += take(iter(loader), 2)
        state = saved(loader)

    assert seen == epoch


def test_samples_that_are_done_are_not_read_again():
    dataset = Counted(4000)
    loader = FastLoader(dataset, 4, shuffle=True, num_workers=0)
    iterator = iter(loader)
    take(iterator, 990)
    state = saved(loader)
    dataset.read.clear()
    fresh = FastLoader(dataset, 4, shuffle=True, num_workers=0)

    fresh.load_state_dict(state)
    list(fresh)

    assert len(dataset.read) == 40


def test_the_global_generators_are_left_alone():
    loader = ORDERS["pairs"](num_workers=0)
    take(iter(loader), 2)
    state = saved(loader)
    fresh = ORDERS["pairs"](num_workers=0)
    fresh.load_state_dict(state)
    before = torch.get_rng_state()

    list(fresh)

    assert torch.equal(torch.get_rng_state(), before)


def test_after_the_last_batch_but_before_the_end_nothing_is_left():
    loader = ORDERS["seed"](num_workers=0)
    for _ in loader:
        state = saved(loader)
    fresh = ORDERS["seed"](num_workers=0)
    fresh.load_state_dict(state)

    assert plain(fresh) == []
    assert plain(fresh) == plain(loader)


def test_after_the_end_the_next_epoch_comes():
    loader = ORDERS["seed"](num_workers=0)
    plain(loader)
    state = saved(loader)
    fresh = ORDERS["seed"](num_workers=0)

    fresh.load_state_dict(state)

    assert plain(fresh) == plain(loader)


@pytest.mark.parametrize("order", ["seed", "generator", "stateful sampler"])
def test_a_state_that_is_marked_as_finished_leads_to_the_next_epoch(order):
    loader = ORDERS[order](num_workers=0)
    iterator = iter(loader)
    take(iterator, 10)
    state = saved(loader)
    state["_iterator_finished"] = True
    list(iterator)
    fresh = ORDERS[order](num_workers=0)

    fresh.load_state_dict(state)

    assert plain(fresh) == plain(loader)


@pytest.mark.parametrize("count", [8, 9, 10])
def test_a_sampler_that_ends_within_the_last_batch_is_not_read_twice(count):
    loader = FastLoader(Numbers(38), 4, sampler=Countdown(38), num_workers=0)
    iterator = iter(loader)
    take(iterator, count)
    state = saved(loader)
    left = plain(iterator)
    following = plain(loader)
    fresh = FastLoader(Numbers(38), 4, sampler=Countdown(38), num_workers=0)

    fresh.load_state_dict(state)
    rest = iter(fresh)
    again = saved(fresh)

    assert again == state
    assert plain(rest) == left
    assert plain(fresh) == following


def test_a_state_that_was_loaded_is_given_again():
    loader = ORDERS["seed"](num_workers=0)
    take(iter(loader), 3)
    state = saved(loader)
    fresh = ORDERS["seed"](num_workers=0)
    fresh.load_state_dict(state)

    assert saved(fresh) == state


def test_a_state_does_not_change_when_the_loader_goes_on():
    loader = ORDERS["stateful sampler"](num_workers=0)
    iterator = iter(loader)
    take(iterator, 3)
    state = loader.state_dict()
    before = pickle.dumps(state)

    take(iterator, 3)

    assert pickle.dumps(state) == before


@pytest.mark.parametrize("order", ["seed", "generator", "global generator", "pairs"])
def test_a_state_can_be_saved_as_json(order):
    loader = ORDERS[order](num_workers=0)
    iterator = iter(loader)
    take(iterator, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    left = plain(iterator)
    fresh = ORDERS[order](num_workers=0)

    fresh.load_state_dict(state)

    assert plain(fresh) == left


def test_a_state_can_be_saved_by_torch_without_code(tmp_path):
    loader = ORDERS["pairs"](num_workers=0)
    iterator = iter(loader)
    take(iterator, 3)
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    left = plain(iterator)
    fresh = ORDERS["pairs"](num_workers=0)

    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

    assert plain(fresh) == left


@pytest.mark.multiprocess
def test_batches_that_came_early_do_not_come_again():
    options = {"num_workers": 2, "in_order": False, "multiprocessing_context": "fork"}
    loader = FastLoader(SlowFirst(20), 2, **options)
    iterator = iter(loader)
    seen = take(iterator, 4)
    state = saved(loader)
    del iterator
    fresh = FastLoader(Numbers(20), 2, **options)

    fresh.load_state_dict(state)
    seen += plain(fresh)

    assert [0, 1] not in seen[:4]
    assert sorted(seen) == [[index, index + 1] for index in range(0, 20, 2)]


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 1])
def test_draws_of_the_dataset_are_those_of_an_undisturbed_run(num_workers):
    epoch = plain(FastLoader(Drawing(), 4, shuffle=True, seed=5, num_workers=2))
    loader = FastLoader(Drawing(), 4, shuffle=True, seed=5, num_workers=2)
    take(iter(loader), 3)
    state = saved(loader)
    fresh = FastLoader(Drawing(), 4, shuffle=True, seed=5, num_workers=num_workers)

    fresh.load_state_dict(state)

    assert plain(fresh) == epoch[3:]


def test_the_rest_may_come_in_batches_of_another_size():
    loader = FastLoader(Numbers(), 4, shuffle=True, seed=5, num_workers=0)
    order = flat(plain(loader))
    loader = FastLoader(Numbers(), 4, shuffle=True, seed=5, num_workers=0)
    take(iter(loader), 3)
    smaller = FastLoader(Numbers(), 3, shuffle=True, seed=5, num_workers=0)
    smaller.load_state_dict(saved(loader))
    iterator = iter(smaller)
    some = take(iterator, 2)
    larger = FastLoader(Numbers(), 11, shuffle=True, seed=5, num_workers=0)

    larger.load_state_dict(saved(smaller))

    assert order[:12] + flat(some) + flat(plain(larger)) == order


def test_whole_batches_of_a_dataset_go_on_in_the_same_order():
    dataset = TensorDataset(torch.arange(40))
    make = lambda: FastLoader(dataset, 4, shuffle=True)  # noqa: E731
    loader = make()
    iterator = iter(loader)
    [next(iterator) for _ in range(3)]
    state = saved(loader)
    left = [batch.tolist() for [batch] in iterator]
    fresh = make()

    fresh.load_state_dict(state)

    assert [batch.tolist() for [batch] in fresh] == left


def test_the_first_batches_can_be_left_out_without_a_state():
    dataset = Counted(40)
    loader = FastLoader(dataset, 4, shuffle=True, seed=5, num_workers=0)
    epoch = plain(loader)
    fresh = FastLoader(dataset, 4, shuffle=True, seed=5, num_workers=0)
    dataset.read.clear()

    fresh._epochs.skip_batches(fresh, 7)

    assert plain(fresh) == epoch[7:]
    assert len(dataset.read) == 12


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dataset": Numbers(41)}, "length 40"),
        ({"seed": 6}, "seed=5"),
        ({"shuffle": False}, "another one, but the order of this loader is one from first"),
        ({"samples_per_epoch": 24}, "an epoch of 40 samples, but this loader has 24"),
        ({"dataset": Numbers(), "batch_sampler": Pairs(40), "shuffle": None}, "batch sampler"),
    ],
)
def test_a_state_of_another_loader_is_refused(change, text):
    options = {"dataset": Numbers(), "batch_size": 4, "shuffle": True, "seed": 5}
    loader = FastLoader(**options, num_workers=0)
    take(iter(loader), 3)
    state = saved(loader)
    options |= change
    if "batch_sampler" in change:
        del options["batch_size"]

    with pytest.raises(ResumeError, match=text):
        FastLoader(**options, num_workers=0).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"num_batches": -3},
        {"num_batches": "3"},
        {"epoch": None},
        {"seed": "5"},
        {"dataset_length": -1},
        {"batch_size": 0},
        {"num_ranks": None},
        {"num_workers": 1.5},
        {"is_sequential": []},
        {"is_over": "no"},
        {"done": None},
        {"done": [1, "2"]},
        {"origin": [1]},
        {"order": [1]},
        {"start": {}},
        {"start": {"base_seed": "1", "generators": {}, "global_generators": None}},
    ],
    ids=str,
)
@pytest.mark.parametrize("num_read", [0, 3])
def test_a_damaged_state_is_refused(change, num_read):
    loader = FastLoader(Numbers(), 4, num_workers=0)
    take(iter(loader), num_read)
    state = {**saved(loader), **change}

    with pytest.raises(ResumeError, match=f"damaged: {next(iter(change))} should be"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("num_read", [0, 3])
def test_each_part_of_a_state_is_needed(num_read):
    loader = FastLoader(Numbers(), 4, num_workers=0)
    take(iter(loader), num_read)
    whole = saved(loader)

    for name in whole:
        state = {key: value for key, value in whole.items() if key != name}
        match = (
            "no state of a FastLoader" if name == "version" else f"damaged: {name} is missing"
        )
        with pytest.raises(ResumeError, match=match):
            loader.load_state_dict(state)


@pytest.mark.parametrize("state", [{"_num_yielded": 3}, None, "state"], ids=str)
def test_something_else_than_a_state_is_refused(state):
    with pytest.raises(ResumeError, match="no state of a FastLoader"):
        FastLoader(Numbers(), 4, num_workers=0).load_state_dict(state)


def test_another_number_of_ranks_needs_a_sampler_that_can_share_out_the_rest():
    def make(num_replicas):
        sampler = DistributedSampler(Numbers(), num_replicas=num_replicas, rank=0)
        return FastLoader(Numbers(), 4, sampler=sampler, num_workers=0)

    loader = make(2)
    take(iter(loader), 2)

    with pytest.raises(ResumeError, match="2 ranks"):
        make(3).load_state_dict(saved(loader))


def test_torchs_own_iterators_cannot_be_resumed():
    loader = FastLoader(Numbers(), 4, transport="torch", num_workers=0)

    with pytest.raises(ResumeError, match="transport"):
        loader.state_dict()


def test_a_sampler_whose_state_cannot_be_saved_still_gives_its_order(caplog):
    sampler = UnpicklableCountdown(40)
    loader = FastLoader(Numbers(), 4, sampler=sampler, num_workers=0)

    assert flat(plain(loader)) == list(sampler)
    assert "state_dict of UnpicklableCountdown cannot be pickled" in caplog.text


class LosingSecond:
    """A stage that cannot hand on its second batch."""

    def __init__(self, source):
        self.source = source
        self.num_taken = 0

    def __next__(self):
        batch = next(self.source)
        self.num_taken += 1
        if self.num_taken == 2:
            raise LostBatchError(ValueError("cannot be moved"))
        return batch

    def __getattr__(self, name):
        return getattr(self.source, name)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_a_stage_has_lost_is_not_read_again(num_workers):
    loader = FastLoader(Numbers(), 4, num_workers=num_workers)
    iterator = iter(loader)
    iterator._stream = LosingSecond(iterator._stream)
    next(iterator)

    with pytest.raises(ValueError, match="cannot be moved"):
        next(iterator)
    lost = loader.state_dict()
    third = next(iterator)
    after = loader.state_dict()
    iterator.close()

    for state, expected in ((lost, third), (after, third + 4)):
        resumed = FastLoader(Numbers(), 4, num_workers=num_workers)
        resumed.load_state_dict(state)
        assert torch.equal(next(iter(resumed)), expected)


class Interrupted(Numbers):
    """Samples, one of which is interrupted as by Ctrl-C when it is read first."""

    was_interrupted = False

    def __getitem__(self, index):
        if index == 6 and not self.was_interrupted:
            self.was_interrupted = True
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_a_batch_that_was_interrupted_comes_with_the_next_call():
    loader = FastLoader(Interrupted(), 4, num_workers=0)
    iterator = iter(loader)
    first = next(iterator)

    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    state = loader.state_dict()
    rest = list(iterator)

    resumed = FastLoader(Numbers(), 4, num_workers=0)
    resumed.load_state_dict(state)
    expected = list(FastLoader(Numbers(), 4, num_workers=0))
    assert torch.equal(torch.cat([first, *rest]), torch.cat(expected))
    assert torch.equal(torch.cat(list(resumed)), torch.cat(expected[1:]))
