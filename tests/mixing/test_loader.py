"""MixedLoader: what comes, whatever the sources are and whoever reads them."""

import itertools
import pickle
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fastloader import FastLoader
from fastloader.datasets import MixedDataset
from fastloader.errors import EmptyEpochError, ResumeError, SettingsError
from fastloader.mixing import MixedLoader
from tests.equality import assert_same
from tests.mixing.sources import Draws, Endless, Numbers, Processes, Stream, Told


def _datasets():
    return {"a": Numbers(0, 11), "b": Numbers(100, 5)}


def _loaders():
    return {
        "a": FastLoader(Numbers(0, 11), 3, shuffle=True, seed=1, num_workers=0),
        "b": FastLoader(Stream(100, 5), 2, num_workers=0),
    }


_RULES = {
    "default": {},
    "weighted": {"strategy": "weighted", "weights": {"a": 1, "b": 2}},
    "random": {"strategy": "random", "weights": {"a": 1, "b": 2}, "epoch_length": 9},
    "burst": {"strategy": "weighted", "burst": 2, "epoch_length": 9},
    "pattern": {"strategy": "pattern", "pattern": ["a", "b", "b"]},
    "sequential": {"strategy": "sequential"},
    "sequential again": {"strategy": "sequential", "epoch_length": 12},
    "first": {"stop": "FIRST_DATASET_EXHAUSTED"},
}

every_rule = pytest.mark.parametrize("rules", _RULES.values(), ids=_RULES)


def _make(kind, rules, num_workers=0):
    options = {**rules, "with_names": True, "seed": 3}
    if kind == "loaders":
        return MixedLoader(_loaders(), **options)
    if kind == "streams":
        sources = {"a": Numbers(0, 11), "b": Stream(100, 5)}
        return MixedLoader(sources, 3, mix="samples", shuffle=True, num_workers=0, **options)
    if kind == "samples":
        options["mix"] = "samples"
    return MixedLoader(_datasets(), 3, shuffle=True, num_workers=num_workers, **options)


every_kind = pytest.mark.parametrize("kind", ["datasets", "samples", "loaders", "streams"])


@every_kind
@every_rule
def test_it_goes_on_at_any_batch_and_the_epochs_after_are_whole(kind, rules):
    mixed = _make(kind, rules)
    first = list(mixed)
    states, second = [mixed.state_dict()], []
    for batch in mixed:
        second.append(batch)
        states.append(mixed.state_dict())
    states.append(mixed.state_dict())  # after the end
    third = list(mixed)

    for number, state in enumerate(states):
        resumed = _make(kind, rules)
        resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
        if number <= len(second):
            assert_same(second[number:], list(resumed))
        assert_same(third, list(resumed))
    assert first


@every_kind
def test_it_can_be_resumed_twice_in_one_epoch(kind):
    rules = _RULES["weighted"]
    expected = list(_make(kind, rules))
    got, state = [], None

    for _ in range(3):
        mixed = _make(kind, rules)
        if state is not None:
            mixed.load_state_dict(state)
        got += itertools.islice(mixed, 2)
        state = mixed.state_dict()

    assert_same(expected[:6], got)


@pytest.mark.multiprocess
@pytest.mark.parametrize("mix", ["batches", "samples"])
def test_the_number_of_workers_changes_nothing(mix, no_leaks):
    rules = {"mix": mix, "strategy": "weighted", "weights": {"a": 1, "b": 2}, "shuffle": True}
    sources = {"a": Draws(0, 11), "b": Draws(100, 5)}
    epochs = []
    for num_workers in (0, 2):
        mixed = MixedLoader(sources, 3, num_workers=num_workers, with_names=True, **rules)
        epochs.append([list(mixed), list(mixed)])
        del mixed

    assert_same(*epochs)


@pytest.mark.multiprocess
def test_a_state_taken_with_workers_is_that_without():
    mixed, resumed = (_make("datasets", _RULES["weighted"], workers) for workers in (2, 0))
    batches = iter(mixed)
    for _ in range(4):
        next(batches)

    resumed.load_state_dict(mixed.state_dict())

    assert_same(list(batches), list(resumed))


@pytest.mark.parametrize("mix", ["batches", "samples"])
def test_each_pass_over_a_source_draws_other_numbers(mix):
    sources = {"a": Draws(0, 4), "b": Draws(0, 40)}
    mixed = MixedLoader(sources, 4, mix=mix, strategy="weighted")

    draws = [draw for _ in range(2) for batch in mixed for draw in zip(*batch, strict=True)]

    counts = Counter(tuple(int(part) for part in draw) for draw in draws)
    assert set(counts.values()) == {1}


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 2])
def test_live_workers_tell_their_copies_of_each_pass(num_workers):
    sources = {"a": Told(0, 4), "b": Told(100, 12)}
    mixed = MixedLoader(sources, 2, strategy="weighted", num_workers=num_workers)

    epochs = [list(mixed) for _ in range(2)]

    for epoch in epochs:
        seen = [number for numbers, told in epoch for number in told.tolist()]
        assert None not in seen
    told = [
        [e for n, t in epoch for i, e in zip(n, t, strict=True) if i < 4] for epoch in epochs
    ]
    assert [int(t) for epoch in told for t in epoch[::4]] == list(range(6))


@pytest.mark.parametrize("shuffle", [False, True])
def test_all_is_the_same_whether_one_loader_reads_all_or_each_its_own(shuffle):
    sources = {"a": Draws(0, 6), "b": Draws(0, 6)}
    options = {"shuffle": shuffle, "num_workers": 0, "seed": 4, "with_names": True}
    one = MixedLoader(sources, 2, **options)
    several = MixedLoader({**sources, "stream": Stream(0, 2)}, 2, **options)

    own = [(name, batch) for _ in range(2) for name, batch in several if name != "stream"]

    assert one.loader is not None
    assert several.loader is None
    assert_same([*one, *one], own)


def test_sources_are_read_by_one_loader_if_all_are_map_style():
    mixed = MixedLoader(_datasets(), 3, num_workers=0)

    assert isinstance(mixed.loader, FastLoader)
    assert set(mixed.loaders.values()) == {mixed.loader}
    assert_same(list(MixedLoader(_datasets(), 3, num_workers=0).loader), list(mixed))


def test_whole_batches_are_made_in_one_call_and_without_workers():
    sources = {"a": TensorDataset(torch.arange(8)), "b": TensorDataset(torch.arange(8, 12))}

    mixed = MixedLoader(sources, 4, mix="samples", with_names=True)

    assert mixed.loader.settings.batched
    assert [(names, batch[0].tolist()) for names, batch in mixed] == [
        (("a", "b", "a", "b"), [0, 8, 1, 9]),
        (("a", "b", "a", "b"), [2, 10, 3, 11]),
        (("a", "a", "a", "a"), [4, 5, 6, 7]),
    ]


def test_functions_of_the_caller_get_what_they_get_without_names():
    options = {
        "collate_fn": torch.stack,
        "batch_transform": torch.neg,
        "device_transform": torch.Tensor.float,
        "num_workers": 0,
    }
    bare = MixedLoader(_datasets(), 3, **options)
    named = MixedLoader(_datasets(), 3, with_names=True, **options)

    assert_same(list(bare), [batch for _, batch in named])


def test_without_names_batches_come_as_they_are():
    mixed = MixedLoader(_loaders())

    assert all(isinstance(batch, torch.Tensor) for batch in mixed)


def test_each_pass_over_a_loader_is_an_epoch_of_it():
    loaders = {
        "few": FastLoader(Numbers(0, 6), 6, shuffle=True, seed=0, num_workers=0),
        "many": FastLoader(Numbers(100, 4), 1, num_workers=0),
    }
    mixed = MixedLoader(loaders, strategy="weighted", with_names=True)

    passes = [batch.tolist() for _ in range(2) for name, batch in mixed if name == "few"]

    alone = FastLoader(Numbers(0, 6), 6, shuffle=True, seed=0, num_workers=0)
    assert passes == [batch.tolist() for _ in passes for batch in alone]
    assert len({tuple(batch) for batch in passes}) == len(passes) == 8


def test_samplers_of_stock_loaders_are_told_of_each_pass():
    sampler = torch.utils.data.DistributedSampler(range(8), num_replicas=1, rank=0)
    stock = DataLoader(range(8), 4, sampler=sampler)
    mixed = MixedLoader({"few": stock, "many": [[0]] * 6}, strategy="weighted", with_names=True)

    orders = [batch.tolist() for name, batch in mixed if name == "few"]

    assert orders[:2] != orders[2:4]


def test_sources_may_have_no_length():
    loaders = {"endless": Endless(), "stream": FastLoader(Stream(0, 4), 2, num_workers=0)}

    mixed = MixedLoader(loaders, stop="FIRST_DATASET_EXHAUSTED", with_names=True)

    assert [name for name, _ in mixed] == ["endless", "stream"] * 2 + ["endless"]
    with pytest.raises(TypeError, match=r"\['endless', 'stream'\] have no length"):
        len(mixed)


def test_a_fixed_length_is_known_even_if_those_of_the_sources_are_not():
    mixed = MixedLoader({"a": Endless(), "b": FastLoader(Stream(0, 3))}, epoch_length=7)

    assert len(mixed) == len(list(mixed)) == 7


def test_weights_are_exact_where_no_length_is_known():
    mixed = MixedLoader(
        {"a": Endless(), "b": FastLoader(Stream(0, 3), num_workers=0)},
        strategy="weighted",
        weights={"a": 0.2, "b": 0.8},
        epoch_length=50,
        with_names=True,
    )

    assert Counter(name for name, _ in mixed) == {"a": 10, "b": 40}


def test_a_source_that_can_be_read_once_only_is_named():
    mixed = MixedLoader({"once": iter([1, 2]), "many": Endless()}, epoch_length=9)

    with pytest.raises(EmptyEpochError, match="'once' gave no batch in pass 1"):
        list(mixed)


def test_two_passes_at_once_are_independent():
    mixed = MixedLoader(_datasets(), 3, shuffle=True, num_workers=0)
    alone = [list(MixedLoader(_datasets(), 3, shuffle=True, num_workers=0)) for _ in range(1)]

    pairs = list(zip(mixed, mixed, strict=True))

    assert_same(alone[0], [first for first, _ in pairs])


@every_kind
def test_a_pass_begins_with_its_first_batch(kind):
    expected = list(_make(kind, {}))
    mixed = _make(kind, {})

    iter(mixed)

    assert_same(expected, list(mixed))


@every_kind
def test_the_epoch_can_be_chosen(kind):
    expected = [list(_make(kind, {})) for _ in range(1)]
    mixed = _make(kind, {})
    later = [list(mixed), list(mixed)][1]

    mixed.set_epoch(0)
    assert_same(expected[0], list(mixed))
    assert_same(later, list(mixed))


@every_kind
def test_weights_change_from_the_next_epoch_on_and_are_resumed(kind):
    rules = {"strategy": "weighted", "weights": {"a": 1, "b": 1}, "epoch_length": 10}
    mixed = _make(kind, rules)
    list(mixed)
    mixed.set_weights({"a": 3})
    assert mixed.weights == {"a": 3, "b": 1}
    resumed = _make(kind, rules)
    resumed.load_state_dict(mixed.state_dict())

    expected = list(mixed)

    assert_same(expected, list(resumed))
    names = [
        name for names, _ in expected for name in ([names] if isinstance(names, str) else names)
    ]
    assert abs(names.count("a") - 0.75 * len(names)) <= 0.5


def test_an_epoch_that_never_ends_has_no_length():
    mixed = MixedLoader(_datasets(), 3, stop="CYCLE_FOREVER", num_workers=0)

    assert len(list(itertools.islice(mixed, 40))) == 40
    with pytest.raises(TypeError, match="cycles forever"):
        len(mixed)


@pytest.mark.multiprocess
def test_one_set_of_workers_reads_all_datasets(no_leaks):
    sources = {name: Processes(0, 8) for name in "abc"}
    mixed = MixedLoader(sources, 2, num_workers=2)

    processes = {int(pid) for batch in mixed for pid in batch}

    assert len(processes) == 2
    del mixed


def test_datasets_with_loaders_of_their_own_share_one_budget():
    sources = {
        "map": Numbers(0, 50),
        "stream": Stream(0, 50),
        "ready": TensorDataset(torch.arange(50)),
        "given": FastLoader(Numbers(0, 50), num_workers=1),
    }

    mixed = MixedLoader(sources, 2, num_workers=4)

    counts = {name: loader.num_workers for name, loader in mixed.loaders.items()}
    assert counts == {"map": 2, "stream": 1, "ready": 0, "given": 1}


def test_sources_read_one_after_the_other_do_not_keep_workers():
    mixed = MixedLoader(
        {"a": Numbers(0, 50), "b": Stream(0, 50)}, strategy="sequential", num_workers=2
    )

    assert [loader.num_workers for loader in mixed.loaders.values()] == [2, 1]
    assert not any(loader.persistent_workers for loader in mixed.loaders.values())


def test_a_loader_without_a_state_is_named():
    mixed = MixedLoader({"stock": DataLoader(range(4)), "fast": FastLoader(range(4))})

    with pytest.raises(ResumeError, match="'stock' is a DataLoader, which has no state_dict"):
        mixed.state_dict()


def test_a_state_of_other_sources_is_refused():
    state = MixedLoader(_loaders()).state_dict()
    other = MixedLoader({"c": FastLoader(range(4))})

    with pytest.raises(ResumeError, match=r"sources \['a', 'b'\], but here they are \['c'\]"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": []}, "a mixture decides"),
        ({"with_names": True, "on_error": "skip"}, "choose one"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        MixedLoader(_datasets(), **options)


def test_options_for_datasets_need_some():
    with pytest.raises(SettingsError, match=r"\['shuffle', 'timeout'\] are for loaders"):
        MixedLoader(_loaders(), shuffle=True, timeout=3)


def test_batches_of_streams_have_exact_quotas_and_are_collated_as_asked():
    sources = {"a": Stream(0, 100), "b": Stream(1000, 10)}
    mixed = MixedLoader(
        sources,
        8,
        mix="samples",
        strategy="weighted",
        weights={"a": 3, "b": 1},
        epoch_length=9,
        collate_fn=torch.stack,
        num_workers=0,
    )

    batches = list(mixed)

    assert len(mixed) == len(batches) == 9
    assert [int((batch >= 1000).sum()) for batch in batches] == [2] * 9


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_batch_of_mixed_streams_may_be_left_out(drop_last):
    sources = {"a": Numbers(0, 7), "b": Stream(100, 4)}
    mixed = MixedLoader(sources, 4, mix="samples", drop_last=drop_last, num_workers=0)

    sizes = [len(batch) for batch in mixed]

    assert sizes == ([4, 4] if drop_last else [4, 4, 3])


def test_options_for_batches_have_no_place_where_samples_are_put_together_here():
    with pytest.raises(SettingsError, match=r"\['device'\] are for batches"):
        MixedLoader({"a": Stream(0, 4)}, 2, mix="samples", device="cpu")


def test_only_datasets_can_be_mixed_inside_a_batch():
    with pytest.raises(SettingsError, match="inside a batch"):
        MixedLoader(_loaders(), mix="samples")


@pytest.mark.parametrize("kind", [MixedLoader, MixedDataset])
def test_a_source_that_gives_nothing_is_refused_by_its_name(kind):
    with pytest.raises(
        SettingsError, match="source 'b' should be a dataset or a loader, but got 3"
    ):
        kind({"a": range(4), "b": 3})


@pytest.mark.parametrize("sources", [[range(4), range(8)], range(4), None], ids=str)
@pytest.mark.parametrize("kind", [MixedLoader, MixedDataset])
def test_sources_without_names_are_refused_with_what_to_write(kind, sources):
    with pytest.raises(SettingsError, match=r"mapping from names .*'first': "):
        kind(sources)


@pytest.mark.parametrize(("epoch", "words"), [(-1, "0 or more"), (1.5, "a whole number")])
def test_an_epoch_that_cannot_be_is_refused(epoch, words):
    for loader in (MixedLoader(_datasets()), FastLoader(range(4))):
        with pytest.raises(SettingsError, match=words):
            loader.set_epoch(epoch)
