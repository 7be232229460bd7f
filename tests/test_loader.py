"""FastLoader is a DataLoader: same options, same order, same batches, and it explains itself."""

import copy
import errno
import inspect
import logging
import multiprocessing
import os
import pickle
import threading
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    get_worker_info,
)

import fastloader
from fastloader import FastLoader
from fastloader.errors import (
    EmptyEpochError,
    ResumeError,
    SettingsError,
    UnpicklableError,
)
from fastloader.machine._machine import read_machine
from fastloader.sampling._epoch_order import begin_epoch

AUTOMATIC = {
    "num_workers",
    "pin_memory",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
}
OWN = [
    "seed",
    "device",
    "workers",
    "resident",
    "transport",
    "batch_transform",
    "device_transform",
    "on_error",
    "on_worker_death",
    "watchdog_seconds",
    "distributed",
    "samples_per_epoch",
    "batches_per_epoch",
    "settings",
]


class Squares(Dataset):
    def __init__(self, length=10):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index) ** 2])


class Draws(Squares):
    def __getitem__(self, index):
        return torch.rand(1)


def end(_):
    raise StopIteration


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


class Sharded(Stream):
    num_shards = 3


def numbers(loader):
    return [
        int(number)
        for batch in loader
        for number in torch.as_tensor(batch, device="cpu").flatten()
    ]


def test_the_signature_is_torchs_followed_by_our_options():
    stock = list(inspect.signature(DataLoader.__init__).parameters.values())
    ours = list(inspect.signature(FastLoader.__init__).parameters.values())

    assert [(p.name, p.kind) for p in ours[: len(stock)]] == [(p.name, p.kind) for p in stock]
    assert [p.name for p in ours[len(stock) :]] == OWN
    for parameter, stocks in zip(ours, stock, strict=False):
        expected = "auto" if parameter.name in AUTOMATIC else stocks.default
        assert parameter.default == expected


def test_public_attributes_are_exactly_the_options():
    options = set(inspect.signature(FastLoader.__init__).parameters)
    attributes = {name for name in vars(FastLoader([1, 2])) if not name.startswith("_")}

    assert attributes == options - {"self", "shuffle", "multiprocessing_context"}


@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        (Squares(), {}, [("num_workers", None)]),
        (TensorDataset(torch.arange(4)), {}, [("num_workers", 0), ("batched", True)]),
        ([1, 2, 3], {}, [("num_workers", 0), ("batched", False)]),
        (Squares(), {"num_workers": 0}, [("prefetch_factor", None), ("timeout", 0)]),
        (Squares(), {"num_workers": 1}, [("prefetch_factor", 2), ("persistent_workers", True)]),
        (Squares(), {"num_workers": 1, "prefetch_factor": 5}, [("prefetch_factor", 5)]),
        (
            Squares(),
            {"num_workers": 1, "persistent_workers": False},
            [("persistent_workers", False)],
        ),
        (Squares(), {"transport": "torch"}, [("transport", "torch")]),
        (Squares(), {"device": "cpu"}, [("device", "cpu")]),
    ],
    ids=[
        "opaque",
        "batched",
        "list",
        "no workers",
        "a worker",
        "prefetch",
        "short-lived workers",
        "transport",
        "device",
    ],
)
def test_settings_are_the_attributes_and_each_has_a_reason(dataset, options, expected):
    loader = FastLoader(dataset, **options)

    settings = loader.settings

    for name, value in expected:
        if value is not None:
            assert getattr(settings, name) == value
        assert settings.reasons[name]
        assert name in loader.explain()
    for name in (
        "num_workers",
        "prefetch_factor",
        "persistent_workers",
        "pin_memory",
        "timeout",
    ):
        assert getattr(settings, name) == getattr(loader, name)


def test_settings_follow_an_attribute_that_is_set_later():
    loader = FastLoader(Squares(), num_workers=2)

    loader.num_workers = 1

    assert loader.settings.num_workers == 1
    assert loader.settings.reasons["num_workers"] == "set after construction"


@pytest.mark.multiprocess
@pytest.mark.parametrize("given", [0, 2])
@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize(
    "options", [{}, {"timeout": 60, "prefetch_factor": 3, "persistent_workers": True}], ids=str
)
@pytest.mark.filterwarnings("ignore:num_workers is 0")
def test_a_loader_whose_number_of_workers_was_set_later_is_explained_and_copied(
    given, later, options
):
    loader = FastLoader(Squares(), num_workers=given, **options)

    loader.num_workers = later

    assert loader.settings.num_workers == later
    assert (loader.settings.prefetch_factor is None) == (later == 0)
    assert "set after construction" in loader.explain() or given == later
    expected = [batch.tolist() for batch in loader]
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert other.num_workers == later
        assert [batch.tolist() for batch in other] == expected


class Colleagues(Dataset):
    """Tells how many workers there may be."""

    def __len__(self):
        return 64

    def __getitem__(self, _index):
        return get_worker_info().num_workers


def do_nothing(_worker_id):
    pass


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        (Squares(), {}, True),
        (Squares(), {"worker_init_fn": do_nothing}, False),
        (Squares(), {"collate_fn": list}, False),
        (Colleagues(), {}, False),
    ],
    ids=["plain code", "worker_init_fn", "collate_fn", "asks for its worker"],
)
def test_batches_go_to_any_worker_only_where_nobody_can_tell(dataset, options, expected):
    iterator = iter(FastLoader(dataset, 8, num_workers=2, **options))

    assert iterator._stream._pool.options.are_alike is expected
    iterator.close()


@pytest.mark.multiprocess
@pytest.mark.skipif(read_machine().rank_cpus < 2, reason="one CPU has no workers to spare")
def test_workers_may_become_more_than_the_loader_says_until_somebody_sets_their_number():
    loader = FastLoader(Colleagues(), batch_size=1)
    chosen = loader.num_workers

    told = {int(batch) for batch in loader}
    loader.num_workers = chosen - 1
    told_then = {int(batch) for batch in loader}

    assert (
        f"up to {max(told)} where they wait" in loader._choice.settings.reasons["num_workers"]
    )
    assert len(told) == 1
    assert max(told) > chosen == FastLoader(Colleagues(), batch_size=1).num_workers
    assert told_then == {chosen - 1}


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize(
    "dataset", [Squares(), TensorDataset(torch.arange(4))], ids=["opaque", "batched"]
)
def test_a_loader_made_anew_from_the_attributes_is_the_same(dataset, options):
    loader = FastLoader(dataset, shuffle=True, seed=3, **options)
    attributes = {
        name: value for name, value in vars(loader).items() if not name.startswith("_")
    }
    for name in ("batch_size", "batch_sampler", "drop_last"):
        del attributes[name]

    again = FastLoader(**attributes)

    changed = {
        name
        for name in attributes
        if vars(again)[name] is not attributes[name] and vars(again)[name] != attributes[name]
    }
    assert changed == set()
    assert numbers(again) == numbers(loader)


def test_choices_are_logged_once_and_not_printed(caplog, capsys):
    with caplog.at_level(logging.DEBUG, "fastloader"):
        FastLoader(Squares())

    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert capsys.readouterr() == ("", "")


def test_the_alias_loader_is_the_loader_and_no_attribute():
    loader = FastLoader([1, 2, 3])

    assert numbers(loader.loader) == [1, 2, 3]
    assert "loader" not in vars(loader)


class Watched(FastLoader):
    num_asked = 0

    def _get_iterator(self):
        self.num_asked += 1
        return super()._get_iterator()


@pytest.mark.parametrize("options", [{}, {"transport": "torch"}], ids=str)
def test_a_subclass_may_make_its_iterators_as_with_torch(options):
    loader = Watched(Squares(), num_workers=0, **options)

    assert numbers(loader) == numbers(loader) == [number**2 for number in range(10)]
    assert loader.num_asked == 2


class Uncollated(FastLoader):
    _auto_collation = False


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("cls", "options"), [(FastLoader, {"transport": "torch"}), (Uncollated, {})], ids=str
)
def test_passes_by_torchs_iterators_are_apart_if_nobody_asked_for_lasting_workers(cls, options):
    loader = cls(Squares(3), 1, num_workers=1, **options)

    assert [(int(a), int(b)) for a in loader for b in loader] == [
        (a, b) for a in (0, 1, 4) for b in (0, 1, 4)
    ]


def test_the_class_can_be_subscripted():
    assert FastLoader[torch.Tensor].__origin__ is FastLoader


# Errors


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_workers": -1}, SettingsError, "num_workers option should be non-negative"),
        ({"timeout": -1}, SettingsError, "timeout option should be non-negative"),
        ({"prefetch_factor": -1, "num_workers": 1}, SettingsError, "should be non-negative"),
        ({"prefetch_factor": 0, "num_workers": 1}, SettingsError, "prefetch_factor"),
        (
            {"num_workers": 0, "multiprocessing_context": "spawn"},
            SettingsError,
            r"\(num_workers > 0\), but got",
        ),
        (
            {"num_workers": 1, "multiprocessing_context": "bad"},
            SettingsError,
            "valid start method",
        ),
        ({"num_workers": 1, "multiprocessing_context": 3.5}, TypeError, "valid context"),
        ({"sampler": [1], "shuffle": True}, SettingsError, "mutually exclusive"),
        ({"batch_size": None, "drop_last": True}, SettingsError, "batch_size=None"),
        ({"batch_size": 0}, SettingsError, "batch_size should be a positive integer"),
        ({"batch_size": "4"}, SettingsError, "batch_size should be a positive integer.*'4'"),
        ({"drop_last": None}, SettingsError, "drop_last should be a boolean"),
        ({"no_such_option": 1}, TypeError, "^FastLoader.*'no_such_option'.$"),
        ({"batchsize": 4}, TypeError, "^FastLoader.*'batchsize'. Did you mean 'batch_size'"),
        ({"num_workers": 1.5}, SettingsError, "num_workers should be a whole number"),
        ({"num_workers": None}, SettingsError, "num_workers"),
        ({"prefetch_factor": "2", "num_workers": 1}, SettingsError, "prefetch_factor"),
        ({"timeout": "3", "num_workers": 1}, SettingsError, "timeout"),
        ({"timeout": float("nan"), "num_workers": 1}, SettingsError, "timeout"),
        ({"timeout": "auto", "num_workers": 1}, SettingsError, "timeout option .* got 'auto'"),
        ({"watchdog_seconds": -1}, SettingsError, "watchdog_seconds should be a number"),
        ({"collate_fn": 3}, SettingsError, "collate_fn should be a function"),
        ({"worker_init_fn": 3}, SettingsError, "worker_init_fn should be a function"),
        ({"batch_transform": 3}, SettingsError, "batch_transform should be a function"),
        ({"device_transform": 3}, SettingsError, "device_transform should be a function"),
        ({"generator": 3}, SettingsError, "generator should be a torch.Generator"),
        ({"seed": 1.5}, SettingsError, "seed should be a whole number"),
        ({"seed": "auto"}, SettingsError, "seed should be a whole number or None, .*'auto'"),
        ({"distributed": []}, SettingsError, r"distributed should be .*\[\]"),
        ({"in_order": "yes"}, SettingsError, "in_order should be True or False"),
        ({"shuffle": "no"}, SettingsError, "shuffle should be True, False or None"),
        ({"pin_memory": "no"}, SettingsError, "pin_memory should be True or False"),
        ({"persistent_workers": "no"}, SettingsError, "persistent_workers should be True"),
        ({"device": "cude"}, SettingsError, "device should be one that torch knows.*'cude'"),
        ({"device": 1.5}, SettingsError, "device should be one that torch knows.*1.5"),
        ({"sampler": "random"}, SettingsError, "sampler should be an iterable.*'random'"),
        ({"sampler": 3}, SettingsError, "sampler should be an iterable.*3"),
        ({"sampler": len}, SettingsError, "sampler should be an iterable.*10"),
        ({"batch_sampler": 3}, SettingsError, "batch_sampler should be an iterable.*3"),
        ({"batch_sampler": [4, 5]}, SettingsError, "list of indices for each batch.*4 first"),
        ({"transport": "pigeon"}, SettingsError, "transport"),
        ({"seed": -1}, SettingsError, "seed"),
        pytest.param(
            {"seed": 1, "generator": torch.Generator()}, SettingsError, "generator", id="both"
        ),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        FastLoader(Squares(), **options)


@pytest.mark.parametrize("name", ["shuffle", "sampler", "batch_sampler"])
@pytest.mark.parametrize("value", [3, len], ids=["3", "a function"])
def test_no_order_of_a_stream_can_be_given_as_with_torch(name, value):
    with pytest.raises(SettingsError, match=f"IterableDataset: expected unspecified {name}"):
        FastLoader(Stream(), **{name: value})


def test_a_device_that_torch_does_not_know_is_refused_where_it_is_named():
    loader = FastLoader(Squares())

    with pytest.raises(SettingsError, match=r"device should be one that torch knows.*'cude'"):
        loader.to("cude")
    assert loader.device is None


class GivenAtOnce(Squares):
    """Reads the samples of a batch in one call."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def __getitems__(self, indices):
        return self.kind([index**2 for index in indices])


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_samples_that_are_read_in_one_call_may_be_given_as_any_sequence(kind):
    batches = list(FastLoader(GivenAtOnce(kind), 4, num_workers=0))

    assert [batch.tolist() for batch in batches] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]


@pytest.mark.parametrize(
    ("dataset", "what"),
    [(None, "NoneType"), (iter("ab"), "str_.*iterator"), (Stream, "the class Stream")],
    ids=["none", "iterator", "class"],
)
def test_a_dataset_without_a_length_is_refused_where_that_is_needed(dataset, what):
    with pytest.raises(TypeError, match=f"dataset should have a length.*{what}"):
        FastLoader(dataset, shuffle=True)
    with pytest.raises(TypeError, match=f"dataset should have a length.*{what}"):
        list(FastLoader(dataset))


def test_options_of_streams_that_cannot_work_are_refused():
    with pytest.raises(SettingsError, match="unspecified shuffle"):
        FastLoader(Stream(), shuffle=True)


def test_one_warning_names_all_worker_options_that_have_no_effect():
    with pytest.warns(UserWarning, match="num_workers is 0") as caught:
        loader = FastLoader(
            Squares(), num_workers=0, prefetch_factor=4, persistent_workers=True, timeout=5
        )

    [warning] = caught
    text = str(warning.message)
    assert all(
        name in text for name in ("prefetch_factor=4", "persistent_workers", "timeout=5")
    )
    assert warning.filename == __file__
    assert numbers(loader) == [number**2 for number in range(10)]


def test_worker_options_of_a_loader_that_chose_no_workers_are_ignored_in_silence():
    loader = FastLoader(TensorDataset(torch.arange(3)), prefetch_factor=4, timeout=5)

    assert (loader.num_workers, loader.prefetch_factor, loader.timeout) == (0, None, 0)
    assert "prefetch_factor=4" in loader.explain()


@pytest.mark.parametrize("value", ["-1", "two"])
def test_an_override_that_is_no_number_is_refused(monkeypatch, value):
    monkeypatch.setenv("FASTLOADER_NUM_WORKERS", value)

    with pytest.raises(SettingsError, match="FASTLOADER_NUM_WORKERS"):
        FastLoader(Squares())


def test_the_override_stands_in_for_the_automatic_count_only(monkeypatch):
    monkeypatch.setenv("FASTLOADER_NUM_WORKERS", "2")

    assert FastLoader(Squares()).num_workers == 2
    assert FastLoader(Squares(), num_workers=1).num_workers == 1


def test_an_empty_dataset_cannot_be_shuffled_and_the_error_says_so():
    with pytest.raises(EmptyEpochError, match="dataset is empty"):
        FastLoader([], shuffle=True)


def test_an_empty_dataset_gives_no_batches():
    assert list(FastLoader([], batch_size=2, drop_last=True)) == []


def test_single_samples_that_are_read_only_arrive_writable_and_without_a_warning():
    row = np.frombuffer(bytes(range(4)), np.uint8)
    loader = FastLoader([{"row": row, "pair": (row[::-1], 1)}], batch_size=None, num_workers=0)

    [sample] = loader
    sample["row"] += 1

    assert sample["row"].tolist() == [1, 2, 3, 4]
    assert sample["pair"][0].tolist() == [3, 2, 1, 0]
    assert row.tolist() == [0, 1, 2, 3]


@pytest.fixture
def _other_thread():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    yield
    stop.set()
    thread.join()


class Locked(Squares):
    def __init__(self, *parts):
        super().__init__()
        self.lock = threading.Lock()
        self.parts = parts

    def __getitem__(self, index):
        with self.lock:
            return super().__getitem__(index)


@pytest.mark.multiprocess
@pytest.mark.usefixtures("_other_thread")
def test_what_only_a_fork_can_take_along_is_forked_with_a_warning_though_threads_are_alive():
    loader = FastLoader(Locked(), num_workers=1)

    with pytest.warns(UserWarning, match=r"forked, though other threads.*dataset\.lock"):
        batches = list(loader)

    assert len(batches) == 10


@pytest.mark.usefixtures("_other_thread")
@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([threading.current_thread()], {}),
        ([], {"multiprocessing_context": "forkserver"}),
    ],
    ids=["threads of its own", "start method given"],
)
def test_what_a_fork_would_not_mend_or_was_not_to_be_is_an_error(parts, options):
    with pytest.raises(UnpicklableError, match=r"dataset\.lock"):
        list(FastLoader(Locked(*parts), num_workers=1, **options))


@pytest.mark.multiprocess
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1}], ids=str)
def test_a_lost_key_is_told_once_wherever_the_batch_is_made(options):
    samples = [{"image": 1}, {"image": 1, "mask": 2}] * 3
    loader = FastLoader(samples, batch_size=2, **options)

    with pytest.warns(UserWarning, match=r"\['mask'\]") as told:
        list(loader)

    assert len([warning for warning in told if "mask" in str(warning.message)]) == 1


def fail(samples):
    raise ValueError("no batch")


@pytest.mark.parametrize("option", ["collate_fn", "batch_transform"])
def test_an_error_without_workers_names_the_samples_of_the_batch(option):
    loader = FastLoader(
        list(range(20)), sampler=[17, 13], batch_size=2, num_workers=0, **{option: fail}
    )

    with pytest.raises(ValueError, match="no batch") as caught:
        list(loader)

    assert "batch 0, samples 17, 13" in caught.value.__notes__[-1]


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("option", ["collate_fn", "batch_transform", "device_transform"])
def test_a_stray_stop_iteration_does_not_end_the_epoch(option, num_workers):
    loader = FastLoader(list(range(8)), num_workers=num_workers, **{option: end})

    with pytest.raises(RuntimeError, match=f"{option} raised StopIteration"):
        list(loader)


def test_an_epoch_that_drop_last_leaves_empty_is_an_error():
    loader = FastLoader([1, 2, 3], batch_size=4, drop_last=True)

    with pytest.raises(EmptyEpochError, match=r"3 samples .* batch_size=4"):
        iter(loader)


# Order and seeds


@pytest.mark.parametrize(
    "dataset", [Squares(), TensorDataset(torch.arange(10))], ids=["opaque", "batched"]
)
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": True, "batch_size": None},
        {"sampler": RandomSampler(range(10), replacement=True, num_samples=70)},
        {"batch_sampler": BatchSampler(RandomSampler(range(10)), 3, drop_last=True)},
        {"sampler": torch.utils.data.SubsetRandomSampler(range(5))},
    ],
    ids=["shuffle", "single", "with replacement", "batch sampler", "subset"],
)
def test_order_and_global_state_are_torchs_in_every_epoch(dataset, options):
    outcomes = []
    for cls in (DataLoader, FastLoader):
        torch.manual_seed(7)
        loader = cls(dataset, num_workers=0, **options)
        epochs = [[default_collate([batch]) for batch in loader] for _ in range(3)]
        outcomes.append((str(epochs), torch.rand(1).item()))

    assert outcomes[1] == outcomes[0]


def test_order_is_torchs_for_the_same_generator():
    orders = [
        [numbers(loader), numbers(loader)]
        for loader in (
            cls(
                range(30),
                shuffle=True,
                generator=torch.Generator().manual_seed(4),
                num_workers=0,
            )
            for cls in (DataLoader, FastLoader)
        )
    ]

    assert orders[1] == orders[0]


@pytest.mark.parametrize(
    "dataset",
    [range(9), TensorDataset(torch.arange(9)), Stream()],
    ids=["opaque", "batched", "iterable"],
)
def test_a_loader_that_does_not_shuffle_leaves_the_global_state_alone(dataset):
    before = torch.get_rng_state()

    list(FastLoader(dataset, num_workers=0))

    assert torch.equal(torch.get_rng_state(), before)


def test_an_iterable_dataset_that_shuffles_itself_still_moves_the_global_state():
    class Shuffled(IterableDataset):
        def __iter__(self):
            return iter(torch.randperm(50).tolist())

    loader = FastLoader(Shuffled(), num_workers=0)

    assert numbers(loader) != numbers(loader)


def test_a_seed_decides_the_order_alone_and_differs_by_epoch():
    torch.manual_seed(1)
    first = FastLoader(range(50), shuffle=True, seed=5)
    epochs = [numbers(first), numbers(first)]
    before = torch.get_rng_state()
    torch.manual_seed(2)
    second = FastLoader(range(50), shuffle=True, seed=5)

    assert [numbers(second), numbers(second)] == epochs
    assert epochs[0] != epochs[1]
    assert sorted(epochs[1]) == list(range(50))
    assert numbers(FastLoader(range(50), shuffle=True, seed=6)) != epochs[0]
    assert torch.equal(before, torch.manual_seed(1).get_state())


def test_a_broken_off_epoch_does_not_change_the_order_of_the_next():
    whole = FastLoader(range(50), shuffle=True, seed=5)
    orders = [numbers(whole), numbers(whole)]
    broken = FastLoader(range(50), shuffle=True, seed=5)
    for _ in broken:
        break

    assert numbers(broken) == orders[1]


def test_samplers_are_of_torchs_types():
    assert type(FastLoader(range(3)).sampler) is SequentialSampler
    assert type(FastLoader(range(3), shuffle=True).sampler) is RandomSampler
    assert isinstance(FastLoader(range(3), shuffle=True, seed=1).sampler, RandomSampler)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.multiprocess)])
def test_order_is_drawn_on_the_cpu_whatever_the_default_device_is(num_workers):
    dataset = [torch.tensor(number, device="cpu") for number in range(8)]
    torch.set_default_device("meta")
    try:
        assert sorted(
            numbers(FastLoader(dataset, shuffle=True, num_workers=num_workers))
        ) == list(range(8))
    finally:
        torch.set_default_device(None)


# Iteration


def test_two_passes_at_once_do_not_disturb_each_other():
    loader = FastLoader(range(6), batch_size=2)

    assert [(int(a[0]), int(b[0])) for a, b in zip(loader, loader, strict=True)] == [
        (0, 0),
        (2, 2),
        (4, 4),
    ]


@pytest.mark.multiprocess
def test_a_change_of_the_dataset_between_epochs_is_seen_by_workers():
    dataset = Squares(3)
    loader = FastLoader(dataset, num_workers=1)
    numbers(loader)

    dataset.__class__ = type(
        "Zeros", (Squares,), {"__getitem__": lambda self, index: torch.zeros(1)}
    )

    assert numbers(loader) == [0, 0, 0]


def test_whole_batches_are_made_in_one_call():
    calls = []

    class Counting(Squares):
        def get_batch(self, indices):
            calls.append(list(indices))
            return default_collate([self[index] for index in indices])

    list(FastLoader(Counting(), batch_size=4))

    assert calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_collate_function_of_the_user_gets_samples():
    def collate(samples):
        return len(samples)

    assert list(FastLoader(TensorDataset(torch.arange(5)), 2, collate_fn=collate)) == [2, 2, 1]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_data_stays_where_it_is_without_a_device(device):
    data = torch.utils.data.TensorDataset(torch.arange(8))
    loader = FastLoader(data, 4, resident="device", device=device)

    assert [batch.tolist() for [batch] in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.settings.resident is None
    assert loader.settings.reasons["resident"] == "batches stay on the CPU"


def test_batches_that_are_kept_stay_as_they_were():
    rows = torch.arange(40.0).repeat_interleave(20_000).view(40, 20_000)

    batches = list(FastLoader(TensorDataset(rows), batch_size=4))

    assert torch.equal(torch.cat([batch for [batch] in batches]), rows)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))],
    ids=["deepcopy", "pickle"],
)
def test_a_used_loader_can_be_copied(copied):
    loader = FastLoader(Squares(), batch_size=4, num_workers=0)
    expected = numbers(loader)

    assert numbers(copied(loader)) == expected


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_subclass_with_an_index_sampler_of_its_own_reads_by_it(num_workers):
    class Chosen(FastLoader):
        @property
        def _index_sampler(self):
            return [[1, 2], [3]]

    loader = Chosen(Squares(), batch_size=2, num_workers=num_workers)

    assert [batch.flatten().tolist() for batch in loader] == [[1, 4], [9]]
    with pytest.raises(ResumeError, match="_index_sampler"):
        loader.state_dict()


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_subclass_that_turns_collation_off_reads_single_samples(num_workers):
    loader = Uncollated(Squares(), batch_size=2, sampler=[3, 1], num_workers=num_workers)

    assert [sample.item() for sample in loader] == [9, 1]


@pytest.mark.multiprocess
def test_a_loader_with_running_workers_can_be_pickled():
    loader = FastLoader(Squares(), num_workers=1, persistent_workers=True)
    expected = numbers(loader)

    assert numbers(pickle.loads(pickle.dumps(loader))) == expected


def _workers_chosen(answers):
    answers.put(FastLoader(Squares()).num_workers)


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 2])
def test_threads_may_share_an_iterator(num_workers):
    iterator = iter(FastLoader(Squares(200), 2, num_workers=num_workers))
    taken = []

    def take():
        taken.extend(batch.flatten().tolist() for batch in iterator)

    threads = [threading.Thread(target=take, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(taken) == [[i**2, (i + 1) ** 2] for i in range(0, 200, 2)]


def drawn(_samples):
    return torch.rand(2)


@pytest.mark.parametrize("option", ["collate_fn", "batch_transform"])
def test_code_around_ready_samples_draws_from_the_loaders_seed(option):
    torch.manual_seed(0)
    state = torch.get_rng_state()

    epochs = [
        [batch.tolist() for batch in FastLoader([0, 1, 2, 3], 2, seed=3, **{option: drawn})]
        for _ in range(2)
    ]

    assert epochs[0] == epochs[1]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.multiprocess
def test_no_workers_are_chosen_in_a_daemonic_process():
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_workers_chosen, args=(answers,), daemon=True)
    process.start()

    assert answers.get() == 0
    process.join()


class ReadsLoader(torch.utils.data.Dataset):
    """Samples that another loader has made, which is a part of the dataset."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return numbers(self.loader)


@pytest.mark.multiprocess
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_loader_that_came_to_a_worker_reads_there_if_nobody_asked_for_workers(start_method):
    inner = FastLoader(Squares(), 2)
    batches = numbers(inner)  # it may have workers by now

    outer = FastLoader(
        ReadsLoader(inner), None, num_workers=1, multiprocessing_context=start_method
    )

    assert list(outer) == [batches, batches]


@pytest.mark.multiprocess
def test_samples_that_need_gradients_are_told_where_they_cannot_be_sent():
    weight = torch.ones(3, requires_grad=True)

    with pytest.raises(RuntimeError, match=r"batch\['x'\] \(a Tensor\) cannot be sent.*detach"):
        list(FastLoader([{"x": weight}, {"x": weight}], num_workers=1))


class OfModel(torch.utils.data.Dataset):
    """Samples that a model has made; their graph cannot leave the process."""

    def __init__(self):
        self.model = torch.nn.Linear(2, 2)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.model(torch.full((2,), float(index)))


@pytest.mark.multiprocess
@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "workers": "threads"}])
def test_gradients_reach_the_model_that_made_samples(options):
    dataset = OfModel()
    wanted = torch.cat(list(DataLoader(dataset, 2))).sum()

    got = torch.cat(list(FastLoader(dataset, 2, **options))).sum()
    got.backward()

    assert got.item() == wanted.item()
    assert dataset.model.weight.grad is not None


@pytest.mark.multiprocess
@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("of", [torch.tensor, np.array])
def test_samples_of_unlike_types_lose_no_digits_in_workers(workers, of):
    samples = [of([1]), of([0.1]), of([True])]
    [wanted] = DataLoader(samples, 3)

    [batch] = FastLoader(samples, 3, num_workers=1, workers=workers)

    assert batch.dtype == wanted.dtype
    assert torch.equal(batch, wanted)


@pytest.mark.multiprocess
@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning", "ignore:TypedStorage")
@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_quantized_samples_become_batches_in_workers_too(workers):
    samples = [
        torch.quantize_per_tensor(torch.ones(3) * n, 0.5, 0, torch.quint8) for n in (1, 2)
    ]
    [wanted] = DataLoader(samples, 2)

    [batch] = FastLoader(samples, 2, num_workers=1, workers=workers)

    assert batch.q_scale() == 0.5
    assert torch.equal(batch.int_repr(), wanted.int_repr())


def _ask_for_workers(answers):
    try:
        next(iter(FastLoader(range(4), num_workers=1)))
    except AssertionError as error:
        answers.put(error.__notes__[0])


@pytest.mark.multiprocess
def test_who_asks_for_workers_in_a_daemonic_process_is_told_what_to_do():
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_ask_for_workers, args=(answers,), daemon=True)
    process.start()

    assert "workers='threads'" in answers.get()
    process.join()


class LockedByForks(Squares):
    """Holds a lock of multiprocessing for forked processes alone."""

    def __init__(self):
        super().__init__()
        self.lock = multiprocessing.get_context("fork").Lock()


@pytest.mark.multiprocess
def test_a_lock_of_another_start_method_is_told_with_what_to_do():
    with pytest.raises(RuntimeError) as caught:
        list(FastLoader(LockedByForks(), num_workers=1, multiprocessing_context="spawn"))

    assert "multiprocessing_context='fork'" in caught.value.__notes__[0]


@pytest.mark.multiprocess
def test_workers_that_cannot_start_in_a_folder_that_was_removed_are_told_with_what_to_do(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()

    with pytest.raises(FileNotFoundError) as caught:
        list(FastLoader(Squares(), num_workers=1, multiprocessing_context="spawn"))

    assert "os.chdir" in caught.value.__notes__[0]


def test_a_limit_of_processes_that_is_reached_is_told_with_what_to_do(monkeypatch):
    def refuse():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)

    with pytest.raises(BlockingIOError) as caught:
        list(FastLoader(Squares(), num_workers=1, multiprocessing_context="fork"))

    assert "ulimit -u" in caught.value.__notes__[0]


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_function_that_reads_a_loader_may_be_compiled(num_workers):
    torch._dynamo.reset()
    loader = FastLoader(torch.arange(8), 2, shuffle=True, num_workers=num_workers)

    @torch.compile(backend="eager")
    def read():
        total = torch.zeros((), dtype=torch.int64)
        for batch in loader:
            total += batch.sum() * 2
        for batch in FastLoader(torch.arange(8), 2, num_workers=0):
            total += batch.sum()
        return total

    assert read() == 3 * sum(range(8))


@pytest.mark.multiprocess
@pytest.mark.parametrize("dataset", [Stream(), Sharded()], ids=["whole", "sharded"])
def test_an_iterable_dataset_is_not_repeated(monkeypatch, dataset):
    monkeypatch.setattr("fastloader.settings._worker_limits._MAX_WORKERS", 1)

    assert numbers(FastLoader(dataset)) == list(range(6))


def test_construction_with_defaults_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FastLoader(Squares(), batch_size=2)


def test_construction_does_not_fix_the_global_start_method():
    FastLoader(Squares())

    code = "import multiprocessing as m, fastloader; fastloader.FastLoader([1]); "
    code += "assert m.get_start_method(allow_none=True) is None"
    assert os.spawnv(os.P_WAIT, _python(), [_python(), "-c", code]) == 0


def _python():
    import sys

    return sys.executable


def test_the_package_exports_what_it_says():
    assert fastloader.__all__ == sorted(fastloader.__all__)
    assert all(hasattr(fastloader, name) for name in fastloader.__all__)
    assert fastloader.__version__.count(".") == 2


class Images(Dataset):
    def __init__(self):
        self.images = torch.ones(8, 3, 64, 64)  # large enough for memory that is used again

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["samples", "batches"])
def test_validation_in_inference_mode_leaves_batches_that_can_be_trained_on(num_workers, kind):
    weight = torch.ones(3, 64, 64, requires_grad=True)
    with torch.inference_mode():
        images = Images()
        dataset = images if kind == "samples" else TensorDataset(images.images.clone())
        loader = FastLoader(dataset, 4, num_workers=num_workers)
        num_evaluated = len([None for _ in loader])

    for batch in loader:
        images = batch if kind == "samples" else batch[0]
        (images * weight).sum().backward()

    assert num_evaluated == 2
    assert torch.equal(weight.grad, torch.full((3, 64, 64), 8.0))


_REPLACING_SCRIPT = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            import fastloader
            sys.modules["torch.utils.data"].DataLoader = fastloader.FastLoader

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
import fastloader.tensors._buffers
from torch.utils.data import DataLoader
assert DataLoader is fastloader.FastLoader
"""


def test_the_class_can_take_dataloaders_place_as_soon_as_torch_is_imported():
    assert os.spawnv(os.P_WAIT, _python(), [_python(), "-c", _REPLACING_SCRIPT]) == 0


class Misreported(IterableDataset):
    """Says that it is shorter than it is."""

    def __len__(self):
        return 2

    def __iter__(self):
        return iter(range(4))


@pytest.mark.filterwarnings("always:Length of IterableDataset")
def test_a_stream_longer_than_it_says_is_told_where_the_loop_is():
    loader = FastLoader(Misreported(), None, num_workers=0)
    len(loader)

    with pytest.warns(UserWarning, match="reported to be 2") as warned:
        batches = list(loader)

    assert len(batches) == 4
    assert {Path(warning.filename).name for warning in warned} == {Path(__file__).name}


def test_how_workers_start_is_chosen_when_it_is_first_asked_for():
    loader = FastLoader(Squares(), num_workers=1)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="someone's")
    thread.start()
    try:
        told = loader.multiprocessing_context
    finally:
        stop.set()
        thread.join()

    assert told.get_start_method() == "forkserver"
    assert loader.multiprocessing_context is told
    assert loader.settings.multiprocessing_context == "forkserver"


def test_a_start_method_that_is_set_stays():
    loader = FastLoader(Squares(), num_workers=1)

    loader.multiprocessing_context = "spawn"

    assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_a_copy_keeps_to_the_settings_of_the_process_that_made_the_loader(monkeypatch):
    loader = FastLoader(Squares(), num_workers=1)
    before = loader.settings

    data = pickle.dumps(loader)
    monkeypatch.setattr("fastloader.machine._machine._count_threads", lambda _root: 7)

    assert pickle.loads(data).settings == before


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.multiprocess)])
def test_a_stream_that_raises_is_an_error_that_says_why_nothing_can_be_left_out(num_workers):
    class Broken(IterableDataset):
        def __iter__(self):
            yield 0
            raise OSError("no more")

    with pytest.raises(OSError, match="no more") as caught:
        list(FastLoader(Broken(), 2, num_workers=num_workers, on_error="skip"))

    assert any("catch this in the dataset" in note for note in caught.value.__notes__)


class OwnIterator(IterableDataset):
    """Its own iterator, which begins anew whenever it is asked for one."""

    def __iter__(self):
        self.num_read = 0
        return self

    def __next__(self):
        if self.num_read == 7:
            raise StopIteration
        self.num_read += 1
        return self.num_read


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {}, {"num_workers": 1}, {"num_workers": 1, "workers": "threads"}],
)
def test_a_dataset_that_is_its_own_iterator_is_begun_once(options):
    loader = FastLoader(OwnIterator(), 3, **options)

    for _ in range(2):
        assert [batch.tolist() for batch in islice(loader, 9)] == [[1, 2, 3], [4, 5, 6], [7]]


class OwnOrder(torch.utils.data.Sampler):
    """Its own iterator as well."""

    __iter__ = OwnIterator.__iter__
    __next__ = OwnIterator.__next__


def test_a_sampler_that_is_its_own_iterator_is_begun_once():
    loader = FastLoader(range(8), 3, sampler=OwnOrder(), num_workers=0)
    iterator = iter(loader)
    first = next(iterator).tolist()
    state = loader.state_dict()
    resumed = FastLoader(range(8), 3, sampler=OwnOrder(), num_workers=0)
    resumed.load_state_dict(state)

    assert first == [1, 2, 3]
    assert [batch.tolist() for batch in islice(iterator, 9)] == [[4, 5, 6], [7]]
    assert [batch.tolist() for batch in islice(resumed, 9)] == [[4, 5, 6], [7]]


class Reused:
    """Gives the same indices, changed, for each batch."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def __iter__(self):
        indices = self.kind([0, 0])
        for first in range(0, 10, 2):
            indices[:] = [first, first + 1]
            yield indices


@pytest.mark.parametrize("kind", [list, np.array])
def test_what_a_batch_sampler_gives_may_change_when_it_goes_on(kind):
    order = begin_epoch(
        [], Reused(kind), is_iterable=False, generator=None, seed=0, epoch=0
    ).batches

    assert [list(drawn.indices) for drawn in list(order)] == [
        [n, n + 1] for n in range(0, 10, 2)
    ]


WORKERS = [
    {"num_workers": 0},
    pytest.param({"num_workers": 1}, marks=pytest.mark.multiprocess),
    {"num_workers": 1, "workers": "threads"},
]


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize(
    "read",
    [
        iter,
        lambda batch: map(int, batch),
        lambda batch: (index for index in batch),
        lambda batch: dict.fromkeys(batch).keys(),
    ],
    ids=["iterator", "map", "generator", "keys"],
)
def test_indices_of_a_batch_may_be_what_can_only_be_gone_through(read, options):
    sampler = [read([1, 2]), read([3])]

    assert numbers(FastLoader(Squares(), batch_sampler=sampler, **options)) == [1, 4, 9]


class ByKey(Squares):
    def __getitem__(self, key):
        place = key.start if isinstance(key, slice) else key[0]
        if place == 2:
            raise ValueError("no second one")
        return super().__getitem__(place)


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize(
    "keys", [[[1], [2], [3]], [slice(n, n + 1) for n in (1, 2, 3)]], ids=str
)
def test_samples_are_left_out_whatever_their_index_is(keys, options):
    loader = FastLoader(ByKey(), batch_sampler=[keys], on_error="skip", **options)

    assert numbers(loader) == [1, 9]
    assert [skip.index for skip in loader.skipped] == [keys[1]]
