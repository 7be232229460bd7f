"""A benchmark that is cut off keeps what it has measured, and says why it is not complete."""

import json
import os
import signal
from typing import ClassVar

import pytest

import _homes
from _harness import Benchmark, BenchmarkError, Work
from _measurement import Measurement
from _passes import add_loaders
from _verdict import why_missing


def works():
    return lambda: Work(samples=1)


def fails():
    def run():
        raise BenchmarkError("no such file")

    return run


def is_ended():
    return lambda: os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("last", "error", "reason"),
    [
        (fails, BenchmarkError, "BenchmarkError: no such file"),
        (is_ended, SystemExit, "SystemExit: cut off by SIGTERM."),
    ],
    ids=["error", "signal"],
)
def test_what_was_measured_is_written_when_the_rest_fails(
    tmp_path, monkeypatch, capsys, last, error, reason
):
    results = tmp_path / "deep" / "a.json"
    monkeypatch.setattr("sys.argv", ["bench", "--json", str(results), "--smoke"])
    benchmark = Benchmark("Which?", isolate=False)
    benchmark.add("good", works, table="1")
    benchmark.add("bad", last, table="2")
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(error):
        benchmark.main()

    assert not results.exists()
    written = json.loads(results.with_suffix(".partial.json").read_text())
    assert written["cut_off_by"] == reason
    assert written["command"] == "python bench --json a.json --smoke"
    assert len(written["runs"]["good"]) == 1
    assert "not complete after 1 runs" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before


def run_of(seconds):
    return lambda: seconds


def test_what_is_far_from_the_quickest_is_given_up_where_it_may_be(monkeypatch):
    monkeypatch.setattr(
        _homes, "measure", lambda run: Measurement(run(), 1.0, 0, Work(samples=1))
    )
    monkeypatch.setattr("sys.argv", ["bench"])
    benchmark = Benchmark("Which?", isolate=False)
    benchmark.add("quick", run_of, seconds=1.0)
    benchmark.add("slow", run_of, seconds=9.0)
    benchmark.add("limit", run_of, is_limit=True, seconds=0.1)
    benchmark.add("slow, given up", run_of, may_be_given_up=True, seconds=9.0)
    benchmark.add("not so slow", run_of, may_be_given_up=True, seconds=1.9)

    results = benchmark.main(baseline="quick")["results"]

    assert [len(one.get("runs", ())) for one in results.values()] == [5, 5, 5, 0, 5]
    told = why_missing(results["slow, given up"])
    assert told == "given up: took 9.0 times as long as the quickest"


def test_of_tables_of_which_nothing_is_chosen_the_limit_is_not_measured(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--smoke", "--only", "a: mine"])
    benchmark = Benchmark("Which?", isolate=False)
    for table in "ab":
        benchmark.add(f"{table}: mine", works, table=table)
        benchmark.add(f"{table}: limit", works, table=table, is_limit=True)

    assert list(benchmark.main()["results"]) == ["a: mine", "a: limit"]
    capsys.readouterr()


def test_a_loader_that_is_left_out_is_a_row_with_its_reason(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--smoke"])
    benchmark = Benchmark("Which?", isolate=False)
    add_loaders(
        benchmark, list, batch_size=1, num_workers=(1,), shuffle=False,
        only=["SPDL, threads"], left_out={"SPDL, threads": "takes a week"},
    )  # fmt: skip

    report = benchmark.main()

    assert report["results"]["SPDL, threads"]["cannot_run"] == "takes a week"
    assert "cannot run: takes a week" in capsys.readouterr().out


@pytest.mark.multiprocess
def test_a_forked_home_ends_by_itself_though_a_later_one_holds_its_connection():
    configuration = _homes.Configuration("it", "", "it", works, {}, False, False, None)
    first, later = (_homes.Apart(configuration, "fork") for _ in range(2))
    for home in (first, later):
        home.wait()

    first.close()
    later.close()

    assert (first._process.exitcode, later._process.exitcode) == (0, 0)


class Process:
    """In place of a process: its runs take longer and longer, and it notes what becomes of it."""

    opened: ClassVar[list] = []

    def __init__(self, configuration, start_method):
        self.seconds = configuration.options["seconds"] * configuration.options["steps"].pop(0)
        self.num_runs = 0
        self.is_closed = False
        assert all(other.is_closed for other in self.opened)
        self.opened.append(self)

    def wait(self):
        pass

    def warm_up(self):
        self.measure()

    def measure(self):
        self.num_runs += 1
        return Measurement(self.seconds * self.num_runs, 1.0, 0, Work(samples=1))

    def peak_bytes(self, *, runs):
        return 7

    def close(self):
        self.is_closed = True


def add_anew(benchmark, name, seconds, steps=None, **given):
    steps = [1.0] * 9 if steps is None else steps
    benchmark.add(
        name, run_of, seconds=seconds, steps=steps, runs_in_process=3, max_samples_per_second=9,
        **given,
    )  # fmt: skip


def test_each_measurement_may_be_the_middle_run_of_a_new_process(monkeypatch, capsys):
    monkeypatch.setattr(_homes, "Apart", Process)
    monkeypatch.setattr("sys.argv", ["bench", "--runs", "9", "--processes", "5"])
    monkeypatch.setattr(Process, "opened", [])
    benchmark = Benchmark("Which?")
    add_anew(benchmark, "a", 1.0, [1.0, 2.0, 3.0, 4.0, 5.0])
    add_anew(benchmark, "b", 1.0)

    results = benchmark.main()["results"]

    # The first run of a process takes 1 s, and is none that counts; the first process has one more.
    assert [run["wall_seconds"] for run in results["a"]["runs"]] == [2.0, 6.0, 9.0, 12.0, 15.0]
    assert results["a"]["peak_memory_bytes"] == 7
    assert len(Process.opened) == 10
    assert all(process.is_closed for process in Process.opened)
    capsys.readouterr()


def test_with_new_processes_more_is_given_up_once_three_have_told(monkeypatch, capsys):
    monkeypatch.setattr(_homes, "Apart", Process)
    monkeypatch.setattr("sys.argv", ["bench", "--processes", "6"])
    monkeypatch.setattr(Process, "opened", [])
    benchmark = Benchmark("Which?")
    add_anew(benchmark, "quick", 1.0)
    add_anew(benchmark, "slow", 1.5)
    tried = {
        "hopeless": (2.5, [1.0] * 6),
        "slow, given up": (1.5, [1.0] * 6),
        "slow at first": (1.2, [1.6, 1.0, 1.0, 1.0, 1.0, 1.0]),
    }
    for name, (seconds, steps) in tried.items():
        add_anew(benchmark, name, seconds, steps, may_be_given_up=True)

    results = benchmark.main(baseline="quick")["results"]

    assert [len(steps) for _, steps in tried.values()] == [5, 3, 0]
    assert [len(one.get("runs", ())) for one in results.values()] == [6, 6, 0, 0, 6]
    told = why_missing(results["slow, given up"])
    assert told == "given up: took 1.5 times as long as the quickest"
    capsys.readouterr()
