"""Batches of a mixture: what they hold, on which rank, and from where they go on."""

import copy
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastloader.datasets import MixedDataset
from fastloader.errors import EmptyEpochError, ResumeError, SettingsError
from fastloader.mixing import MixedBatchSampler


def _dataset(**lengths):
    return MixedDataset({name: range(length) for name, length in lengths.items()})


def _read(dataset, batches):
    """Return each batch as the names and positions of its samples."""
    starts = np.cumsum([0, *dataset.lengths])
    read = []
    for batch in batches:
        places = np.array(batch) % len(dataset)
        sources = np.searchsorted(starts, places, side="right") - 1
        read.append([
            (dataset.names[source], int(place - starts[source]))
            for source, place in zip(sources, places, strict=True)
        ])
    return read


@st.composite
def samplers(draw):
    names = "abc"[: draw(st.integers(1, 3))]
    dataset = _dataset(**{name: draw(st.integers(3, 30)) for name in names})
    strategy = draw(st.sampled_from(["round_robin", "sequential", "weighted", "random"]))
    rules = {
        "mix": draw(st.sampled_from(["batches", "samples"])),
        "strategy": strategy,
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "epoch_length": draw(st.sampled_from([None, 7, "max"])),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }
    if strategy in {"weighted", "random"}:
        rules["weights"] = {name: draw(st.sampled_from([1, 2, 5])) for name in names}
    return lambda: MixedBatchSampler(dataset, 3, **rules)


@given(samplers(), st.integers(0, 2))
def test_the_length_is_the_number_of_batches(make, epoch):
    sampler = make()
    sampler.set_epoch(epoch)

    assert len(sampler) == len(list(sampler))


@given(samplers(), st.data())
def test_a_sampler_goes_on_from_any_batch(make, data):
    sampler = make()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        states, batches = [copy.deepcopy(sampler.state_dict())], []
        for batch in sampler:
            batches.append(batch)
            states.append(sampler.state_dict())
    place = data.draw(st.integers(0, len(batches)))

    resumed = make()
    resumed.load_state_dict(states[place])
    resumed.set_epoch(2)
    assert list(resumed) == batches[place:]

    after = make()
    after.load_state_dict(sampler.state_dict())
    assert after.epoch == 3
    sampler.set_epoch(3)
    assert list(after) == list(sampler)


@given(samplers())
def test_a_state_holds_little_and_is_not_changed_by_going_on(make):
    sampler = make()
    batches = iter(sampler)
    next(batches)
    state = sampler.state_dict()
    before = copy.deepcopy(state)

    for _ in batches:
        pass

    assert state == before
    assert len(repr(state)) < 1500


@pytest.mark.parametrize("mix", ["batches", "samples"])
def test_every_sample_comes_once_by_default(mix):
    dataset = _dataset(a=11, b=4)

    batches = _read(dataset, MixedBatchSampler(dataset, 3, mix=mix, shuffle=True))

    counts = Counter(sample for batch in batches for sample in batch)
    assert set(counts.values()) == {1}
    assert len(counts) == 15


def test_a_batch_comes_from_one_source_unless_mixed():
    dataset = _dataset(a=11, b=4)

    batches = _read(dataset, MixedBatchSampler(dataset, 3, shuffle=True))

    assert all(len({name for name, _ in batch}) == 1 for batch in batches)


def test_each_source_may_have_a_batch_size():
    dataset = _dataset(a=8, b=4)

    batches = _read(dataset, MixedBatchSampler(dataset, {"a": 4, "b": 2}))

    assert [(batch[0][0], len(batch)) for batch in batches] == [
        ("a", 4),
        ("b", 2),
        ("a", 4),
        ("b", 2),
    ]


@given(st.integers(0, 5), st.integers(4, 40))
def test_mixed_batches_have_exact_quotas_each(epoch, batch_size):
    batch_size *= 4
    dataset = _dataset(few=7, many=1000)
    sampler = MixedBatchSampler(
        dataset,
        batch_size,
        mix="samples",
        strategy="weighted",
        weights={"few": 0.25, "many": 0.75},
        shuffle=True,
        epoch_length=5,
    )
    sampler.set_epoch(epoch)

    batches = _read(dataset, sampler)

    assert len(batches) == 5
    for batch in batches:
        names = Counter(name for name, _ in batch)
        assert names == {"few": batch_size // 4, "many": batch_size * 3 // 4}


def test_a_source_begins_anew_in_another_order_when_it_has_run_out():
    dataset = _dataset(a=6, b=60)
    sampler = MixedBatchSampler(dataset, 2, strategy="weighted", shuffle=True)

    passes = [batch for batch in sampler if batch[0] % len(dataset) < 6]

    orders = [tuple(i for b in passes[n : n + 3] for i in b) for n in range(0, len(passes), 3)]
    assert len({tuple(i % len(dataset) for i in order) for order in orders}) == len(orders)
    assert all(sorted(i % len(dataset) for i in order) == list(range(6)) for order in orders)


def test_no_pass_is_repeated_in_another_epoch():
    dataset = _dataset(a=2, b=20)
    sampler = MixedBatchSampler(dataset, 2, strategy="weighted")
    numbers = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        numbers += [batch[0] // len(dataset) for batch in sampler if batch[0] % 22 < 2]

    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("mix", ["batches", "samples"])
@pytest.mark.parametrize("drop_last", [False, True], ids=["pad", "drop"])
@given(num_replicas=st.integers(2, 4), a=st.integers(12, 40), b=st.integers(12, 40))
def test_ranks_take_the_same_turns_and_other_samples(mix, drop_last, num_replicas, a, b):
    dataset = _dataset(a=a, b=b)
    by_rank = [
        _read(
            dataset,
            MixedBatchSampler(
                dataset,
                3,
                mix=mix,
                shuffle=True,
                drop_last=drop_last,
                num_replicas=num_replicas,
                rank=rank,
            ),
        )
        for rank in range(num_replicas)
    ]

    names = [[[name for name, _ in batch] for batch in batches] for batches in by_rank]
    assert all(names[0] == other for other in names)
    counts = Counter(sample for batches in by_rank for batch in batches for sample in batch)
    if drop_last:
        assert set(counts.values()) == {1}
    else:
        assert len(counts) == a + b
        assert sum(counts.values()) - (a + b) < 2 * num_replicas


def test_weights_change_from_the_next_epoch_on():
    dataset = _dataset(a=100, b=100)
    sampler = MixedBatchSampler(
        dataset, 1, strategy="weighted", weights={"a": 1, "b": 1}, epoch_length=20
    )
    batches = iter(sampler)
    first = [next(batches)]

    sampler.set_weights({"a": 4})
    first += list(batches)
    sampler.set_epoch(1)
    second = list(sampler)

    counts = [Counter(name for [(name, _)] in _read(dataset, b)) for b in (first, second)]
    assert counts == [{"a": 10, "b": 10}, {"a": 16, "b": 4}]
    assert sampler.weights == {"a": 4, "b": 1}


def test_weights_that_were_set_are_resumed():
    dataset = _dataset(a=100, b=100)
    sampler, resumed = (
        MixedBatchSampler(dataset, 1, strategy="weighted", epoch_length=20) for _ in range(2)
    )
    batches = iter(sampler)
    next(batches)
    sampler.set_weights({"a": 4})

    resumed.load_state_dict(sampler.state_dict())

    assert list(resumed) == list(batches)
    resumed.set_epoch(1)
    sampler.set_epoch(1)
    assert list(resumed) == list(sampler)


def test_another_epoch_than_the_loaded_one_begins_at_its_start():
    dataset = _dataset(a=10)
    sampler = MixedBatchSampler(dataset, 2, shuffle=True)
    next(iter(sampler))
    resumed = MixedBatchSampler(dataset, 2, shuffle=True)
    resumed.load_state_dict(sampler.state_dict())

    resumed.set_epoch(4)

    assert len(list(resumed)) == 5


def test_a_state_of_other_sources_is_refused():
    sampler = MixedBatchSampler(_dataset(a=10), 2)
    next(iter(sampler))

    with pytest.raises(ResumeError, match=r"have names \['a'\], but here they have \['b'\]"):
        MixedBatchSampler(_dataset(b=10), 2).load_state_dict(sampler.state_dict())
    with pytest.raises(ResumeError, match=r"have lengths \[5\], but here they have \[3\]"):
        MixedBatchSampler(_dataset(a=10), 4).load_state_dict(sampler.state_dict())


def test_an_endless_epoch_has_no_length():
    sampler = MixedBatchSampler(_dataset(a=2), stop="CYCLE_FOREVER")

    with pytest.raises(TypeError, match="cycles forever"):
        len(sampler)
    assert len([batch for batch, _ in zip(sampler, range(9), strict=False)]) == 9


def test_a_source_without_a_batch_is_refused():
    dataset = _dataset(a=10, b=2)

    with pytest.raises(EmptyEpochError, match="'b' has no batch: of its 2 samples, 2"):
        MixedBatchSampler(dataset, 4, drop_last=True)

    weights = {"a": 1, "b": 0}
    sampler = MixedBatchSampler(dataset, 4, drop_last=True, strategy="random", weights=weights)
    with pytest.raises(EmptyEpochError, match="give it weight 0"):
        sampler.set_weights({"b": 1})
    assert sampler.weights == weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": "pixels"}, "mix must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": {"b": 2}}, "must name each source"),
        ({"batch_size": {"a": 2}, "mix": "samples"}, "one size"),
        ({"rank": 2, "num_replicas": 2}, "rank must be"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        MixedBatchSampler(_dataset(a=4), **options)
