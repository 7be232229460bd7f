"""The search finds the best setting of a machine whose rates are known."""

import dataclasses
import itertools
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastloader.errors import TuningError
from fastloader.tuning import _contest, _duel
from fastloader.tuning._candidate import Candidate
from fastloader.tuning._contest import Contest
from fastloader.tuning._duel import Pace
from fastloader.tuning._limits import Limits
from fastloader.tuning._search import Search
from fastloader.tuning._trial import Stretch

PLAIN = Candidate(
    num_workers=0,
    workers="processes",
    prefetch_factor=None,
    transport="shared",
    pin_memory=False,
    in_order=True,
)
LIMITS = {
    "max_workers": 8,
    "max_threads": 8,
    "memory_bytes": 1 << 60,
    "has_memory_files": True,
    "can_pin": False,
    "any_order": False,
}


class Subject:
    pickled_bytes = 0

    def __init__(self, **fixed):
        self.fixed = fixed


class Machine:
    """Trials whose rates are what a function of their candidate says."""

    def __init__(self, rate, monkeypatch):
        self.alive = set()
        self.most_at_work = 0
        self.start_seconds = 0.0
        at_work = self.at_work = set()
        machine = self

        class FakeTrial:
            def __init__(self, _subject, candidate, _step):
                self.candidate = candidate
                self.position = 0
                self.start_seconds = machine.start_seconds if candidate.num_workers else 0.0
                machine.alive.add(self)
                assert len(machine.alive) <= 3

            def measure(self, num_batches, _max_seconds):
                at_work.add(self)
                machine.most_at_work = max(machine.most_at_work, len(at_work))
                return Stretch(num_batches, num_batches / rate(self.candidate))

            def take_one(self):
                return b"batch"

            def close(self):
                machine.alive.discard(self)
                at_work.discard(self)

        monkeypatch.setattr(_contest, "Trial", FakeTrial)

    def search(self, subject=None, seconds=60.0, plain=PLAIN, automatic=PLAIN, **limits):
        notes = []
        pace = Pace(0.001, time.perf_counter() + seconds)
        subject = subject or Subject()
        limits = Limits(**{**LIMITS, **limits})
        found = Contest(subject, None, limits, pace, pace, lambda: notes.append(1))
        found.begin(plain, len)
        Search(found, subject.fixed, limits).run(automatic)
        found.close()
        assert not self.at_work
        assert len(notes) == len(found.rows)
        return found


@pytest.fixture
def machine(monkeypatch):
    return lambda rate: Machine(rate, monkeypatch)


def labels(found):
    return [row.candidate.label() for row in found.rows]


def test_workers_are_doubled_as_long_as_that_gains(machine):
    found = machine(lambda c: 10.0 * max(1, min(c.num_workers, 4))).search(max_threads=0)

    assert found.best.candidate.num_workers == 4
    assert labels(found)[:5] == [
        "no workers", "1 process", "2 processes", "4 processes", "8 processes",
    ]  # fmt: skip


def test_it_goes_on_from_each_gain_that_is_taken(machine):
    rates = {0: 10.0, 1: 9.0, 2: 20.0, 4: 21.5, 8: 23.0}

    found = machine(lambda c: rates[c.num_workers]).search(max_threads=0)

    assert found.best.candidate.num_workers == 8


def test_it_stops_where_a_doubling_gains_nothing_worth_it(machine):
    rates = {0: 10.0, 1: 9.0, 2: 20.0, 4: 20.5, 8: 80.0}

    found = machine(lambda c: rates[c.num_workers]).search(max_threads=0)

    assert found.best.candidate.num_workers == 2
    assert "8 processes" not in labels(found)


def test_threads_are_taken_where_they_win(machine):
    found = machine(
        lambda c: 10.0 + c.num_workers * (3 if c.workers == "threads" else 1)
    ).search()

    assert (found.best.candidate.workers, found.best.candidate.num_workers) == ("threads", 8)


def test_more_batches_are_made_ahead_where_that_gains(machine):
    found = machine(lambda c: 10.0 * max(1, c.num_workers * (c.prefetch_factor or 0))).search()

    assert found.best.candidate.prefetch_factor == 8


def test_any_order_is_told_of_and_only_taken_where_it_may_be(machine):
    fast = machine(lambda c: (10.0 + c.num_workers) * (1.0 if c.in_order else 2.0))

    kept, taken = fast.search(), fast.search(any_order=True)

    assert kept.best.candidate.in_order
    assert "any_order=True" in kept.rows[-1].outcome
    assert not taken.best.candidate.in_order


def test_what_a_loader_would_choose_is_tried_within_the_limits_alone(machine):
    automatic = dataclasses.replace(PLAIN, num_workers=3, prefetch_factor=2)
    rivals = machine(lambda c: 10.0 + c.num_workers)

    within = rivals.search(automatic=automatic, max_workers=3, max_threads=0)
    beyond = rivals.search(automatic=automatic, max_workers=2, max_threads=0)

    assert "3 processes" in labels(within)
    assert "3 processes" not in labels(beyond)


def test_workers_that_start_slowly_are_not_tried_where_the_budget_has_no_time_for_it(machine):
    rivals = machine(lambda c: 10.0 * max(1, c.num_workers))
    rivals.start_seconds = 100.0

    found = rivals.search(max_threads=2)

    by_label = {row.candidate.label(): row.outcome for row in found.rows}
    assert by_label["2 processes"] == "not tried: the budget is spent"
    assert by_label["2 threads"] != "not tried: the budget is spent"


def test_where_there_is_room_for_the_workers_of_one_setting_the_others_end_first(machine):
    rivals = machine(lambda c: 10.0 * max(1, c.num_workers))

    found = rivals.search(max_workers=4, max_threads=0, memory_bytes=(4 << 28) + 100)

    assert found.best.candidate.num_workers == 4
    assert rivals.most_at_work == 1 + 1  # the first has no workers


def test_what_each_process_gets_a_copy_of_counts_as_memory(machine):
    subject = Subject()
    subject.pickled_bytes = 1 << 30

    found = machine(lambda c: 10.0 * max(1, c.num_workers)).search(
        subject, max_threads=0, memory_bytes=3 << 30
    )

    assert found.best.candidate.num_workers == 2


def test_what_would_take_too_much_memory_is_not_tried(machine):
    found = machine(lambda c: 10.0 * max(1, c.num_workers)).search(
        max_threads=0, memory_bytes=3 << 29
    )

    assert found.best.candidate.num_workers == 4
    assert found.rows[4].outcome == "not tried: would take 2.0 of 1.5 GiB"


def test_a_candidate_that_fails_is_left_out(machine):
    def rate(candidate):
        if candidate.num_workers == 2:
            raise TuningError("no") from MemoryError("all gone")
        return 10.0 + candidate.num_workers

    found = machine(rate).search(max_threads=0)

    assert "failed: all gone" in [row.outcome for row in found.rows]
    assert found.best.candidate.num_workers == 1


def test_what_the_consumer_raises_ends_the_search(machine):
    def rate(candidate):
        return 10.0 if candidate.num_workers == 0 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        machine(rate).search()


def test_without_time_nothing_but_the_plainest_is_measured(machine):
    found = machine(lambda c: 10.0 * (1 + c.num_workers)).search(seconds=-1.0)

    assert found.best.candidate == PLAIN
    assert {row.outcome for row in found.rows[1:]} == {"not tried: the budget is spent"}


def test_what_came_near_has_a_last_chance(machine):
    rates = itertools.count()

    def rate(candidate):
        if candidate.num_workers == 2:
            return 10.0 if next(rates) < 2 else 13.0  # it was slow for a while
        return {0: 5.0, 1: 9.6}.get(candidate.num_workers, 10.4)

    found = machine(rate).search(max_threads=0)

    assert found.best.candidate.num_workers == 2


def test_of_equals_the_one_that_takes_the_least_memory_is_chosen(machine):
    rates = itertools.count()

    def rate(candidate):
        if candidate == PLAIN:
            return 10.0
        return 11.0 if next(rates) < 6 else 10.1  # it was fast for a while

    found = machine(rate).search(max_workers=1, max_threads=0)

    assert found.rows[1].gain == pytest.approx(1.1)
    assert found.best.candidate == PLAIN


def test_gains_are_those_of_measurements_in_turns(machine):
    rates = {0: 10.0, 1: 19.6, 2: 20.0, 4: 5.0, 8: 5.0}
    found = machine(lambda c: rates[c.num_workers]).search(max_threads=0)
    rows = {row.candidate.label(): row for row in found.rows}
    rows["2 processes"].rates[:] = [1.0]  # measured while the machine was slow

    assert found.best.candidate.num_workers == 1  # of equals
    assert found.best.gain_over(rows["no workers"]) == pytest.approx(1.96)
    assert rows["2 processes"].gain_over(found.best) == pytest.approx(20 / 19.6)


def test_the_last_comparison_is_told_of_in_the_table(machine):
    found = machine(lambda c: 10.0 * max(1, min(c.num_workers, 4))).search(max_threads=0)

    assert found.best.outcome == "1.00 of the fastest in the last comparison"


def test_what_fails_in_the_last_comparison_leaves_the_best_so_far(machine, monkeypatch):
    def fail(*_):
        raise TuningError("a worker ended")

    monkeypatch.setattr(_contest, "play_final", fail)

    found = machine(lambda c: 10.0 * max(1, min(c.num_workers, 4))).search(max_threads=0)

    assert found.best.candidate.num_workers == 4
    assert found.best.outcome == "the last comparison failed: a worker ended"


def test_a_clear_winner_needs_no_last_comparison(machine):
    found = machine(lambda c: 10.0 * 100**c.num_workers).search(
        Subject(prefetch_factor=2, transport="shared", in_order=True),
        max_workers=1,
        max_threads=0,
    )

    assert found.best.candidate.num_workers == 1
    assert found.best.outcome == "better"


@pytest.mark.parametrize(
    ("fixed", "plain"),
    [
        ({"num_workers": 4}, {"num_workers": 4, "prefetch_factor": 2}),
        ({"num_workers": 0}, {}),
        ({"workers": "threads"}, {"workers": "threads"}),
        ({"prefetch_factor": 3}, {}),
        ({"transport": "torch"}, {"transport": "torch"}),
        ({"in_order": True}, {}),
    ],
    ids=str,
)
def test_what_the_caller_has_decided_is_not_searched(machine, fixed, plain):
    found = machine(lambda c: 10.0 + c.num_workers).search(
        Subject(**fixed),
        plain=Candidate(**{name: getattr(PLAIN, name) for name in PLAIN.__slots__} | plain),
    )

    for row in found.rows[:-1] if found.rows[-1].candidate == PLAIN else found.rows:
        for name, value in fixed.items():
            if name != "prefetch_factor" or row.candidate.num_workers:
                assert getattr(row.candidate, name) == value


@given(st.floats(0.2, 1.0), st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.3, 3.0))
def test_the_choice_is_within_ten_percent_of_the_best(cost, cores, threads):
    """Workers scale up to the cores, at a cost; threads differ from processes by a factor."""

    def rate(candidate):
        kind = threads if candidate.workers == "threads" else 1.0
        return 10.0 * (cost * kind * min(candidate.num_workers, cores) or 1.0)

    with pytest.MonkeyPatch.context() as monkeypatch:
        found = Machine(rate, monkeypatch).search(max_workers=16, max_threads=16)

    assert rate(found.best.candidate) >= 0.9 * 10.0 * max(1.0, cost * max(1.0, threads) * cores)


@pytest.mark.parametrize("batch_seconds", [0.2, 1.0, 4.0])
def test_slow_batches_keep_to_the_budget(monkeypatch, batch_seconds):
    now = [0.0]

    class SlowTrial:
        def __init__(self, _subject, candidate, _step):
            self.candidate = candidate
            self.position = 0
            self.start_seconds = 0.0

        def measure(self, num_batches, _max_seconds):
            rate = max(1, self.candidate.num_workers) / batch_seconds
            now[0] += (max(1, self.candidate.num_workers) + num_batches) / rate
            return Stretch(num_batches, num_batches / rate)

        def take_one(self):
            now[0] += batch_seconds
            return b"batch"

        def close(self):
            pass

    monkeypatch.setattr(_contest, "Trial", SlowTrial)
    monkeypatch.setattr(_duel, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    pace = Pace(0.25, 30.0)

    limits = Limits(**LIMITS)
    found = Contest(Subject(), None, limits, pace, pace, lambda: None)
    found.begin(PLAIN, len)
    Search(found, {}, limits).run(PLAIN)
    found.close()

    assert now[0] <= 30.0
    assert found.best.candidate.num_workers >= (2 if batch_seconds <= 1 else 0)
    assert ("1 process" in labels(found)) == (batch_seconds < 1)
