"""Schedules: when sources run out, begin again, and an epoch ends."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchdata.nodes import IterableWrapper, MultiNodeWeightedSampler

from fastloader.errors import ResumeError, SettingsError
from fastloader.mixing._passes import PassCounter, Passes, count_turns
from fastloader.mixing._schedule import Schedule
from tests.mixing.mixtures import mixture_of

_STOPS = [
    "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED",
    "ALL_DATASETS_EXHAUSTED",
    "FIRST_DATASET_EXHAUSTED",
]
_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@st.composite
def mixtures(draw, lengths=_lengths):
    lengths = draw(lengths)
    names = "abcdef"[: len(lengths)]
    strategy = draw(st.sampled_from(_STRATEGIES))
    rules = {"strategy": strategy, "stop": draw(st.sampled_from([*_STOPS, "CYCLE_FOREVER"]))}
    if strategy in {"weighted", "random"}:
        rules["weights"] = {name: draw(st.sampled_from([0.5, 1, 2, 5])) for name in names}
    if strategy == "pattern":
        rules["pattern"] = draw(st.lists(st.sampled_from(names), min_size=1, max_size=5))
    if strategy != "sequential":
        rules["burst"] = draw(st.integers(1, 3))
    rules["epoch_length"] = draw(st.sampled_from([5, 23, "sum", "max", "min", None]))
    if rules["stop"] == "CYCLE_FOREVER" and rules["epoch_length"] is None:
        rules["epoch_length"] = 30
    return mixture_of("abcdef"[: len(lengths)], **rules), lengths


_STRATEGIES = ["round_robin", "sequential", "weighted", "random", "pattern"]


def _schedule(mixture, lengths, epoch=0, **options):
    return Schedule(mixture, lengths, seed=0, epoch=epoch, **options)


def _letters(mixture, lengths, *, limit=1, known=True, epoch=0):
    schedule = _schedule(mixture, lengths if known else [None] * len(lengths), epoch)
    passes = Passes(lengths, PassCounter(len(lengths)))
    turns = []
    while len(drawn := passes.draw(schedule, limit)):
        turns += drawn.tolist()
    return "".join("abcdef"[turn] for turn in turns)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, "abcabcbcccc"),
        ({"burst": 2}, "aabbccbcccc"),
        ({"strategy": "sequential"}, "aabbbcccccc"),
        ({"strategy": "sequential", "stop": "FIRST_DATASET_EXHAUSTED"}, "aa"),
        ({"strategy": "sequential", "epoch_length": 15}, "aabbbccccccaabb"),
        ({"stop": "FIRST_DATASET_EXHAUSTED"}, "abcabc"),
        ({"stop": "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"}, "abcabcabcabcabcabcab"),
        ({"strategy": "pattern", "pattern": "cca"}, "ccaccacca"),
        ({"epoch_length": 8}, "abcabcab"),
        ({"epoch_length": "sum"}, "abcabcabcab"),
        ({"epoch_length": "max"}, "abcabc"),
        ({"epoch_length": "min"}, "ab"),
        ({"epoch_length": 9, "stop": "ALL_DATASETS_EXHAUSTED"}, "abcabcbcc"),
        ({"epoch_length": 99, "stop": "ALL_DATASETS_EXHAUSTED"}, "abcabcbcccc"),
    ],
    ids=str,
)
def test_the_turns_of_sources_of_two_three_and_six_items(rules, expected):
    assert _letters(mixture_of("abcdef"[:3], **rules), [2, 3, 6]) == expected


class _InOrder(MultiNodeWeightedSampler):
    """Torchdata's mixture, with turns that go round in place of drawn ones."""

    def _get_new_weighted_sampler(self, initial_state=None):
        return itertools.cycle(self.dataset_names)


@given(_lengths, st.sampled_from(_STOPS))
def test_stop_rules_mean_what_they_mean_in_torchdata(lengths, stop):
    names = "abcdef"[: len(lengths)]
    nodes = {
        name: IterableWrapper([name] * length)
        for name, length in zip(names, lengths, strict=True)
    }
    theirs = _InOrder(nodes, dict.fromkeys(names, 1.0), stop_criteria=stop)
    theirs.reset()

    ours = _letters(mixture_of("abcdef"[: len(lengths)], stop=stop), lengths)

    assert ours == "".join(theirs)


@given(mixtures())
def test_the_number_of_turns_is_known_before(described):
    mixture, lengths = described

    expected = count_turns(mixture, lengths, _schedule(mixture, lengths))

    assert len(_letters(mixture, lengths)) == expected


@given(mixtures(), st.integers(2, 50))
def test_turns_taken_together_are_those_taken_one_by_one(described, limit):
    mixture, lengths = described

    assert _letters(mixture, lengths, limit=limit) == _letters(mixture, lengths)


@given(mixtures())
def test_each_item_comes_once_where_nothing_cycles(described):
    mixture, lengths = described
    if mixture.stop != "ALL_DATASETS_EXHAUSTED" or mixture.epoch_length is not None:
        return

    letters = _letters(mixture, lengths)

    for source in mixture.participants:
        assert letters.count("abcdef"[source]) == lengths[source]


@given(mixtures())
def test_lengths_need_not_be_known(described):
    mixture, lengths = described
    if mixture.strategy == "weighted" or isinstance(mixture.epoch_length, str):
        return  # exact shares are planned by the lengths

    assert _letters(mixture, lengths, known=False) == _letters(mixture, lengths)


@given(_lengths, st.integers(1, 400), st.integers(1, 7))
def test_weights_are_exact_over_a_fixed_epoch_whatever_runs_out_and_however_long_bursts_are(
    lengths, epoch_length, burst
):
    names = "abcd"[: len(lengths)]
    weights = {name: number + 1 for number, name in enumerate(names)}
    mixture = mixture_of(
        "abcdef"[: len(names)],
        strategy="weighted",
        weights=weights,
        burst=burst,
        epoch_length=epoch_length,
    )

    letters = _letters(mixture, lengths, limit=64)

    assert len(letters) == epoch_length
    for name, weight in weights.items():
        assert abs(letters.count(name) - epoch_length * weight / sum(weights.values())) < 1


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED", {"a": 30, "b": 10}),
        ("FIRST_DATASET_EXHAUSTED", {"a": 6, "b": 2}),
    ],
)
def test_shares_are_exact_where_the_stop_rule_ends_the_epoch(stop, expected):
    mixture = mixture_of("abcdef"[:2], strategy="weighted", weights={"a": 3, "b": 1}, stop=stop)

    letters = _letters(mixture, [6, 10])

    assert {name: letters.count(name) for name in "ab"} == expected


def test_a_weight_of_zero_leaves_a_source_out():
    mixture = mixture_of("abcdef"[:2], strategy="weighted", weights={"a": 1, "b": 0})

    assert _letters(mixture, [4, 2]) == "aaaa"


@given(mixtures(), st.data())
def test_a_schedule_goes_on_from_any_place(described, data):
    mixture, lengths = described
    expected = _letters(mixture, lengths)
    place = data.draw(st.integers(0, len(expected)))
    schedule = _schedule(mixture, lengths)
    passes = Passes(lengths, PassCounter(len(lengths)))
    before = [passes.draw(schedule, 1) for _ in range(place)]

    resumed = _schedule(mixture, lengths)
    resumed.load_state_dict(schedule.state_dict())
    resumed_passes = Passes(lengths, PassCounter(len(lengths)))
    resumed_passes.load_state_dict(passes.state_dict())
    after = iter(lambda: resumed_passes.draw(resumed, 1).tolist(), [])

    turns = [turn for part in [*before, *after] for turn in part]
    assert "".join("abcdef"[turn] for turn in turns) == expected


def test_a_state_of_other_sources_is_refused():
    three, two = mixture_of("abcdef"[:3]), mixture_of("abcdef"[:2])
    schedule = _schedule(three, [1, 1, 1])
    schedule.take_turn()

    with pytest.raises(ResumeError, match="take part"):
        _schedule(two, [1, 1]).load_state_dict(schedule.state_dict())


def test_an_epoch_length_by_rule_needs_lengths():
    with pytest.raises(SettingsError, match=r"\['b'\] have none: give a number"):
        _schedule(mixture_of("abcdef"[:2], epoch_length="sum"), [3, None])


def test_passes_are_numbered_through_all_epochs():
    counter = PassCounter(2).of_epoch(0)
    first = [counter.begin_pass(0), counter.begin_pass(0), counter.begin_pass(1)]
    counter = counter.of_epoch(1)
    second = [counter.begin_pass(0), counter.begin_pass(1)]
    counter = counter.of_epoch(1)
    again = [counter.begin_pass(0), counter.begin_pass(1)]
    counter = counter.of_epoch(7)
    later = [counter.begin_pass(0), counter.begin_pass(1)]

    assert (first, second, again, later) == ([0, 1, 0], [2, 1], [2, 1], [7, 7])
