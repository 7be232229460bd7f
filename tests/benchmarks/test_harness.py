"""A benchmark that is cut off keeps what it has measured, and says why it is not complete."""

import json
import os
import signal

import pytest

from _harness import Benchmark, BenchmarkError, Work


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
