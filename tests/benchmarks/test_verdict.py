import pytest

from _homes import Configuration
from _measurement import BenchmarkError, Measurement, Work
from _verdict import FIRST, PEAK, make_report


def nothing():
    raise AssertionError


def configuration(name, *, table="", group="", is_limit=False):
    return Configuration(name, table, group or name, nothing, {}, is_limit, False, None)


def runs(*wall_seconds, samples=100):
    return [Measurement(seconds, seconds, 0, Work(samples=samples)) for seconds in wall_seconds]


def report(
    members,
    measurements,
    *,
    baseline=None,
    reasons=None,
    is_trusted=True,
    is_chosen_apart=False,
    compared="wall_seconds",
    peaks=None,
):
    return make_report(
        members,
        measurements,
        peaks or dict.fromkeys(measurements, 0),
        reasons or {},
        baseline=baseline,
        compared=compared,
        is_trusted=is_trusted,
        is_chosen_apart=is_chosen_apart,
    )


def test_the_baseline_is_the_fastest_of_its_group():
    members = [
        configuration("slow", group="stock"),
        configuration("quick", group="stock"),
        configuration("ours"),
    ]
    measured = {"slow": runs(4, 4, 4), "quick": runs(2, 2, 2), "ours": runs(1, 1, 1)}

    found = report(members, measured, baseline="stock")

    assert found["baseline"] == "quick"
    assert found["results"]["ours"]["times_baseline"]["median"] == 2


def test_the_baseline_of_a_round_may_be_chosen_by_the_other_rounds():
    members = [configuration(name, group="stock") for name in "abc"] + [configuration("ours")]
    lucky = {"a": runs(1, 2, 2), "b": runs(2, 1, 2), "c": runs(2, 2, 1), "ours": runs(2, 2, 2)}

    assert all(
        ratio == 1
        for ratio in report(members, lucky, baseline="stock", is_chosen_apart=True)["results"][
            "ours"
        ]["times_baseline"].values()
    )

    better = {**lucky, "b": runs(1, 1, 1)}
    found = report(members, better, baseline="stock", is_chosen_apart=True)
    assert found["baseline"] == "b"
    assert found["results"]["ours"]["times_baseline"]["median"] == 0.5


def test_one_round_chooses_by_itself():
    members = [configuration("theirs"), configuration("ours")]
    measured = {"theirs": runs(2), "ours": runs(1)}

    found = report(members, measured, baseline="theirs", is_chosen_apart=True)

    assert found["results"]["ours"]["times_baseline"]["median"] == 2


def test_rounds_are_compared_one_by_one():
    members = [configuration("theirs"), configuration("ours")]
    measured = {"theirs": runs(2, 20, 2), "ours": runs(1, 10, 1)}

    found = report(members, measured, baseline=FIRST)

    assert found["results"]["ours"]["times_baseline"] == {"median": 2, "q1": 2, "q3": 2}


def test_every_table_has_its_own_baseline():
    members = [
        configuration("a", table="x", group="stock"),
        configuration("b", table="y", group="stock"),
    ]

    found = report(members, {"a": runs(1), "b": runs(2)}, baseline="stock")

    assert found["baselines"] == {"x": "a", "y": "b"}


def test_what_is_reached_is_a_share_of_the_lowest_limit():
    members = [
        configuration("copy", is_limit=True),
        configuration("decode", is_limit=True),
        configuration("ours"),
    ]
    measured = {"copy": runs(1, 1), "decode": runs(2, 2), "ours": runs(4, 4)}

    found = report(members, measured)

    assert found["results"]["ours"]["share_of_limit"]["median"] == 0.5
    assert "share_of_limit" not in found["results"]["copy"]


def test_what_is_far_above_its_limit_is_refused():
    members = [configuration("copy", is_limit=True), configuration("ours")]
    measured = {"copy": runs(1, 1.2), "ours": runs(0.4, 0.4)}

    with pytest.raises(
        BenchmarkError, match=r"2\.5 times as good as the best run of its limit"
    ):
        report(members, measured)


def test_of_times_the_limit_is_the_longest():
    members = [
        configuration("start", is_limit=True),
        configuration("read", is_limit=True),
        configuration("ours"),
    ]

    def firsts(seconds):
        return [Measurement(9, 9, 0, Work(samples=1, values={"first_batch_seconds": seconds}))]

    measured = {"start": firsts(2), "read": firsts(1), "ours": firsts(4)}

    found = report(members, measured, compared="first_batch_seconds")

    assert found["results"]["ours"]["share_of_limit"]["median"] == 0.5

    with pytest.raises(BenchmarkError, match=r"first_batch_seconds is 4\.0 times as good"):
        report(members, {**measured, "ours": firsts(0.5)}, compared="first_batch_seconds")


def test_memory_is_compared_by_its_peak():
    members = [
        configuration("data", is_limit=True),
        configuration("theirs"),
        configuration("ours"),
    ]
    measured = {"data": runs(1), "theirs": runs(2), "ours": runs(2)}
    peaks = {"data": 100, "theirs": 400, "ours": 200}

    found = report(members, measured, baseline="theirs", compared=PEAK, peaks=peaks)["results"]

    assert found["ours"]["times_baseline"]["median"] == 2
    assert found["ours"]["share_of_limit"]["median"] == 0.5
    assert found["theirs"]["share_of_limit"]["median"] == 0.25


def test_what_cannot_run_keeps_its_reason():
    members = [configuration("peer"), configuration("ours")]

    found = report(members, {"ours": runs(1)}, reasons={"peer": "it is not installed"})

    assert found["results"]["peer"]["cannot_run"] == "it is not installed"
