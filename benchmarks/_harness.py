"""Run named configurations fairly, one at a time and in turn, and report what each costs.

A benchmark script names its configurations and runs them::

    def stock(num_workers: int, smoke: bool) -> Run:
        loader = DataLoader(..., num_workers=num_workers)

        def run() -> Work:
            num_samples = 0
            for batch in loader:
                num_samples += len(batch)
            return Work(samples=num_samples)

        return run


    if __name__ == "__main__":
        benchmark = Benchmark(__doc__)
        benchmark.add("stock, 2 workers", stock, group="stock", num_workers=2)
        benchmark.add("FastLoader", fast)
        benchmark.main(baseline="stock")

The function of a configuration does the preparation and returns the part that is timed. It
stands at module level, since each configuration runs in a process of its own (``isolate=True``)
that lives as long as the benchmark: imports and preparation are paid once and not measured.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from _cost import PeakMemory, tree_cost
from _facts import copy_bytes_per_second, run_facts, usable_cpus

__all__ = ["Benchmark", "BenchmarkError", "Measurement", "Run", "Summary", "Work"]

_MIN_RUNS = 5


class BenchmarkError(RuntimeError):
    """A configuration failed, or reported a rate that cannot be."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one run has done, as the script counted it."""

    samples: int = 0
    batches: int = 0
    nbytes: int = 0
    """Bytes of the batches delivered; checked against what the machine can copy."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Anything else that was measured, by name with its unit, like ``first_batch_seconds``."""


Run: TypeAlias = Callable[[], Work]
"""The part of a configuration that is timed; called many times."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timed run."""

    wall_seconds: float
    cpu_seconds: float
    """CPU time of the whole process tree."""
    page_faults: int
    work: Work

    def quantities(self) -> dict[str, float]:
        """Return every measured number by name."""
        found = {
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "page_faults": float(self.page_faults),
            **self.work.values,
        }
        counts = {
            "samples": self.work.samples,
            "batches": self.work.batches,
            "bytes": self.work.nbytes,
        }
        for name, count in counts.items():
            if count:
                found[f"{name}_per_second"] = count / self.wall_seconds
        if self.work.batches:
            found["page_faults_per_batch"] = self.page_faults / self.work.batches
            found["cpu_seconds_per_batch"] = self.cpu_seconds / self.work.batches
        return found


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and spread of one quantity over the runs."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Summarise `values`: median, first and third quartile."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3)


@dataclass(frozen=True, slots=True)
class _Configuration:
    name: str
    group: str
    prepare: Callable[..., Run]
    options: Mapping[str, Any]


class _Here:
    """A configuration that runs in the process of the benchmark."""

    def __init__(self, configuration: _Configuration) -> None:
        self.pid = os.getpid()
        self._run = configuration.prepare(**configuration.options)

    def measure(self) -> Measurement:
        return _measure(self._run)

    def close(self) -> None:
        del self._run


class _Apart:
    """A configuration that runs in a process of its own, idle until asked."""

    def __init__(self, configuration: _Configuration) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._name = configuration.name
        method = multiprocessing.get_start_method()
        self._process = context.Process(target=_serve, args=(theirs, configuration, method))
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0
        self._receive()

    def _receive(self) -> Any:
        try:
            reply = self._connection.recv()
        except EOFError:
            self._process.join()
            raise BenchmarkError(
                f"{self._name}: the process ended with exit code {self._process.exitcode}."
            ) from None
        if isinstance(reply, str):
            raise BenchmarkError(f"{self._name} failed:\n{reply}")
        return reply

    def measure(self) -> Measurement:
        self._connection.send("run")
        measurement = self._receive()
        assert isinstance(measurement, Measurement)
        return measurement

    def close(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, configuration: _Configuration, start_method: str) -> None:
    """Prepare a configuration, then run it each time the benchmark asks."""
    # A spawned process starts its own children by spawn; loaders are to start their workers
    # as they do in any other program.
    multiprocessing.set_start_method(start_method, force=True)
    try:
        run = configuration.prepare(**configuration.options)
        connection.send(None)
        while connection.recv():
            connection.send(_measure(run))
    except EOFError:
        pass  # the benchmark is done
    except BaseException:  # noqa: BLE001 - the benchmark reports it
        connection.send(traceback.format_exc())


def _measure(run: Run) -> Measurement:
    before = tree_cost()
    start = time.perf_counter()
    work = run()
    wall_seconds = time.perf_counter() - start
    cost = tree_cost() - before
    return Measurement(wall_seconds, cost.cpu_seconds, cost.page_faults, work)


class Benchmark:
    """A set of configurations that answer one question."""

    def __init__(
        self,
        question: str | None,
        *,
        isolate: bool = True,
        max_samples_per_second: float | None = None,
        max_bytes_per_second: float | None = None,
    ) -> None:
        """Start an empty set.

        Args:
            question: The script's docstring; its first line heads the report.
            isolate: Give each configuration a process of its own.
            max_samples_per_second: No true rate can be higher, for instance the number of
                workers over the time that one sample sleeps.
            max_bytes_per_second: The same for bytes; by default twice what all cores
                together could copy from cache to cache.
        """
        self.question = (question or "").strip().partition("\n")[0]
        self._isolate = isolate
        self._max_samples_per_second = max_samples_per_second
        self._max_bytes_per_second = max_bytes_per_second
        self._configurations: list[_Configuration] = []
        parser = argparse.ArgumentParser(
            description=question, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--json", type=Path, help="write everything measured to this file")
        parser.add_argument("--runs", type=int, default=_MIN_RUNS, help="timed runs of each")
        parser.add_argument("--smoke", action="store_true", help="one small run, no claims")
        parser.add_argument("--only", help="only configurations whose name contains this")
        self.parser = parser
        """Add a script's own arguments here, before `arguments` is read."""

    def arguments(self) -> argparse.Namespace:
        """Return the parsed command line; `smoke` tells a script to make its data small."""
        arguments = self.parser.parse_args()
        if arguments.runs < _MIN_RUNS and not arguments.smoke:
            self.parser.error(f"--runs must be {_MIN_RUNS} or more, or use --smoke.")
        return arguments

    def add(
        self, name: str, prepare: Callable[..., Run], *, group: str = "", **options: Any
    ) -> None:
        """Add a configuration.

        Args:
            name: Unique name, as printed.
            prepare: Function at module level that prepares and returns what is timed.
            group: Configurations that are variants of one thing (stock with 0, 1 or 2
                workers): the fastest of a group can be the baseline.
            **options: Passed to `prepare`; picklable.

        Raises:
            BenchmarkError: If the name is taken.
        """
        if any(name == known.name for known in self._configurations):
            raise BenchmarkError(f"there already is a configuration {name!r}.")
        self._configurations.append(_Configuration(name, group or name, prepare, options))

    def main(self, *, baseline: str | None = None, in_groups: bool = False) -> None:
        """Run everything, print the table and write the JSON file when asked.

        Args:
            baseline: Group (or name) whose fastest member the others are compared with.
            in_groups: Compare each with the first of its own group instead.
        """
        arguments = self.arguments()
        num_runs = 1 if arguments.smoke else arguments.runs
        chosen = [
            configuration
            for configuration in self._configurations
            if not arguments.only or arguments.only in configuration.name
        ]
        facts = run_facts()  # before the work changes the load of the machine
        measurements, peaks = self._run(chosen, num_runs, warm_up=not arguments.smoke)
        report = self._report(chosen, measurements, peaks, baseline, in_groups=in_groups)
        _print_table(self.question, report)
        if arguments.smoke:
            print("smoke run: these numbers mean nothing.")
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            document = {"question": self.question, **facts, "smoke": arguments.smoke, **report}
            arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def _run(
        self, chosen: Sequence[_Configuration], num_runs: int, *, warm_up: bool
    ) -> tuple[dict[str, list[Measurement]], dict[str, int]]:
        """Measure every configuration `num_runs` times in turn, then watch its memory."""
        homes: dict[str, _Here | _Apart] = {}
        measurements: dict[str, list[Measurement]] = {one.name: [] for one in chosen}
        peaks: dict[str, int] = {}
        try:
            for one in chosen:
                homes[one.name] = _Apart(one) if self._isolate else _Here(one)
                if warm_up:
                    homes[one.name].measure()
            for turn in range(num_runs):
                # Every other round backwards, so that nobody always follows the same one.
                for one in chosen if turn % 2 == 0 else reversed(chosen):
                    measurement = homes[one.name].measure()
                    self._check(one.name, measurement)
                    measurements[one.name].append(measurement)
            for one in chosen:
                with PeakMemory(homes[one.name].pid) as memory:
                    homes[one.name].measure()
                peaks[one.name] = memory.peak_bytes
        finally:
            for home in homes.values():
                home.close()
        return measurements, peaks

    def _check(self, name: str, measurement: Measurement) -> None:
        """Reject a rate that no machine could reach: the count or the clock is wrong.

        Raises:
            BenchmarkError: If the rate of samples or bytes is over its bound.
        """
        if self._max_bytes_per_second is None:
            self._max_bytes_per_second = 2 * usable_cpus() * copy_bytes_per_second()
        quantities = measurement.quantities()
        for unit, limit in (
            ("samples_per_second", self._max_samples_per_second),
            ("bytes_per_second", self._max_bytes_per_second),
        ):
            rate = quantities.get(unit, 0.0)
            if limit is not None and rate > limit:
                raise BenchmarkError(
                    f"{name}: {unit} is {rate:.3g}, but at most {limit:.3g} is possible; "
                    "look at what is counted and when the clock runs."
                )

    def _report(
        self,
        chosen: Sequence[_Configuration],
        measurements: Mapping[str, Sequence[Measurement]],
        peaks: Mapping[str, int],
        baseline: str | None,
        *,
        in_groups: bool,
    ) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for one in chosen:
            runs = [measurement.quantities() for measurement in measurements[one.name]]
            results[one.name] = {
                "group": one.group,
                "runs": runs,
                "peak_memory_bytes": peaks[one.name],
                "summary": {
                    key: asdict(Summary.of([run[key] for run in runs])) for key in runs[0]
                },
            }
        if in_groups:
            firsts: dict[str, str] = {}
            for one in chosen:
                firsts.setdefault(one.group, one.name)
            for result in results.values():
                _compare(result, results[firsts[result["group"]]])
            return {"baseline": "the first of each group", "results": results}
        rivals = [one.name for one in chosen if baseline in {one.group, one.name}]
        if not rivals:
            return {"baseline": None, "results": results}
        best = min(rivals, key=lambda name: _median_wall(results[name]))
        for result in results.values():
            _compare(result, results[best])
        return {"baseline": best, "results": results}


def _compare(result: dict[str, Any], rival: Mapping[str, Any]) -> None:
    # Round by round, so that what slows the machine for a while slows both.
    ratios = [
        theirs["wall_seconds"] / ours["wall_seconds"]
        for theirs, ours in zip(rival["runs"], result["runs"], strict=True)
    ]
    result["times_baseline"] = asdict(Summary.of(ratios))


def _median_wall(result: Mapping[str, Any]) -> float:
    return float(result["summary"]["wall_seconds"]["median"])


def _print_table(question: str, report: Mapping[str, Any]) -> None:
    header = ["configuration", "wall ms [q1, q3]", "CPU ms", "samples/s", "GB/s"]
    header += ["faults/batch", "peak MiB", "x baseline [q1, q3]"]
    rows = [header, *(_row(name, result) for name, result in report["results"].items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    print(question)
    for row in rows:
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([first, *rest]))
    if report["baseline"]:
        print(f"baseline: {report['baseline']}")
    sys.stdout.flush()


def _row(name: str, result: Mapping[str, Any]) -> list[str]:
    summary = result["summary"]
    ratio = result.get("times_baseline")

    def cell(key: str, scale: float = 1.0, form: str = ",.0f") -> str:
        return format(summary[key]["median"] * scale, form) if key in summary else "-"

    wall = summary["wall_seconds"]
    return [
        name,
        f"{wall['median'] * 1e3:,.1f} [{wall['q1'] * 1e3:,.1f}, {wall['q3'] * 1e3:,.1f}]",
        cell("cpu_seconds", 1e3, ",.1f"),
        cell("samples_per_second"),
        cell("bytes_per_second", 1e-9, ".2f"),
        cell("page_faults_per_batch", 1.0, ",.1f"),
        format(result["peak_memory_bytes"] / 2**20, ",.0f"),
        f"{ratio['median']:.2f} [{ratio['q1']:.2f}, {ratio['q3']:.2f}]" if ratio else "-",
    ]
