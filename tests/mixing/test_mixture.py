"""Mixtures: what a caller may ask for, and what "auto" means."""

import pytest

from fastloader.errors import SettingsError
from tests.mixing.mixtures import mixture_of


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"strategy": "zigzag"}, "strategy must be one of"),
        ({"stop": "NEVER"}, "stop must be one of"),
        ({"burst": 0}, "burst must be 1 or more"),
        ({"burst": 2, "strategy": "sequential"}, "leave burst out"),
        ({"epoch_length": 0}, "epoch_length must be 1 or more"),
        ({"epoch_length": "mean"}, "epoch_length must be one of"),
        ({"weights": {"a": 1, "b": 1}}, "weights need strategy="),
        ({"strategy": "weighted", "weights": {"a": 1}}, "must name each source"),
        ({"strategy": "weighted", "weights": {"a": -1, "b": 1}}, "0 or more"),
        ({"strategy": "random", "weights": {"a": 0, "b": 0}}, "not all 0"),
        ({"strategy": "random", "weights": {"a": float("nan"), "b": 0}}, "finite"),
        ({"strategy": "pattern"}, "need each other"),
        ({"pattern": "ab"}, "need each other"),
        ({"strategy": "pattern", "pattern": "ac"}, r"names the sources \['c'\]"),
        ({"strategy": "pattern", "pattern": ""}, "pattern"),
    ],
    ids=str,
)
def test_rules_that_cannot_work_are_refused(rules, message):
    with pytest.raises(SettingsError, match=message):
        mixture_of("ab", **rules)


def test_a_mixture_needs_sources():
    with pytest.raises(SettingsError, match="one source or more"):
        mixture_of(())


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, "ALL_DATASETS_EXHAUSTED"),
        ({"strategy": "sequential"}, "ALL_DATASETS_EXHAUSTED"),
        ({"strategy": "weighted"}, "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"),
        ({"strategy": "pattern", "pattern": "ab"}, "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"),
        ({"epoch_length": 3}, "CYCLE_FOREVER"),
    ],
    ids=str,
)
def test_the_stop_rule_suits_what_is_asked_for(rules, expected):
    assert mixture_of("ab", **rules).stop == expected


def test_weights_that_are_left_out_stay():
    mixture = mixture_of("ab", strategy="weighted", weights={"a": 1, "b": 2})

    assert mixture.with_weights({"b": 5}).weights == (1, 5)


def test_weights_need_a_strategy_that_has_some():
    with pytest.raises(SettingsError, match="round_robin"):
        mixture_of("ab").with_weights({"a": 1})
