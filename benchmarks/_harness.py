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
        benchmark.add("limit: memory copy", copy, is_limit=True)
        benchmark.main(baseline="stock")

The function of a configuration does the preparation and returns the part that is timed. It
stands at module level, since each configuration runs in a process of its own (``isolate=True``)
that lives as long as its table is measured: imports and preparation are paid once and not
measured. A function that finds that it has no way to run here raises `CannotRun`, and the table
shows why.
"""

import argparse
import contextlib
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from _cut_off import told_of_signals
from _facts import copy_bytes_per_second, run_facts, usable_cpus
from _homes import Anew, Apart, Configuration, Here, Home, StartMethod
from _measurement import BenchmarkError, CannotRun, Keeping, Measurement, Run, Work
from _table import print_table
from _verdict import FIRST, PEAK, make_report

__all__ = [
    "FIRST",
    "PEAK",
    "Benchmark",
    "BenchmarkError",
    "CannotRun",
    "Keeping",
    "Run",
    "Work",
]

_MIN_RUNS = 5
_HOPELESS = 2.0
"""So many times the time of the quickest is not run again after the first run."""
_HOPELESS_LATER = 1.3
"""The same from the third process on."""


class Benchmark:
    """A set of configurations that answer one question."""

    def __init__(
        self,
        question: str | None,
        *,
        isolate: bool = True,
        prepares_at_once: bool = False,
        starts_quickly: bool = False,
        max_samples_per_second: float | None = None,
        max_bytes_per_second: float | None = None,
    ) -> None:
        """Start an empty set.

        Args:
            question: The script's docstring; its first line heads the report.
            isolate: Give each configuration a process of its own.
            prepares_at_once: Prepare all of a table at the same time, which takes half as long:
                for preparation that measures nothing itself and writes no file.
            starts_quickly: Fork the processes of configurations from one that has imported
                everything: a tenth of a second each in place of three, for scripts of many
                tables. What is imported is shared then, so that memory looks smaller.
            max_samples_per_second: No true rate can be higher, for instance the number of
                workers over the time that one sample sleeps.
            max_bytes_per_second: The same for bytes; by default twice what all cores
                together could copy from cache to cache.
        """
        self.question = (question or "").strip().partition("\n")[0]
        self.isolate = isolate
        """May be set once the arguments are known."""
        self._prepares_at_once = prepares_at_once
        self._starts_quickly = starts_quickly
        self._max_samples_per_second = max_samples_per_second
        self._max_bytes_per_second = max_bytes_per_second
        self._configurations: list[Configuration] = []
        self._is_smoke = False
        self._num_threads = _num_threads()
        self._facts = run_facts()  # before any work changes the load of the machine
        parser = argparse.ArgumentParser(
            description=question, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--json", type=Path, help="write everything measured to this file")
        parser.add_argument("--runs", type=int, default=_MIN_RUNS, help="timed runs of each")
        parser.add_argument(
            "--processes",
            type=int,
            default=_MIN_RUNS,
            help="processes of each that gets a new one for each of its runs",
        )
        parser.add_argument("--smoke", action="store_true", help="one small run, no claims")
        parser.add_argument(
            "--only", help="only those whose name contains this, and their limits"
        )
        self.parser = parser
        """Add a script's own arguments here, before `arguments` is read."""

    def arguments(self) -> argparse.Namespace:
        """Return the parsed command line; `smoke` tells a script to make its data small."""
        arguments = self.parser.parse_args()
        if min(arguments.runs, arguments.processes) < _MIN_RUNS and not arguments.smoke:
            self.parser.error(
                f"--runs and --processes must be {_MIN_RUNS} or more, or use --smoke."
            )
        return arguments

    def add(
        self,
        name: str,
        prepare: Callable[..., Run],
        *,
        table: str = "",
        group: str = "",
        is_limit: bool = False,
        may_fail: bool = False,
        may_be_given_up: bool = False,
        runs_in_process: int = 0,
        max_samples_per_second: float | None = None,
        **options: Any,
    ) -> None:
        """Add a configuration.

        Args:
            name: Unique name, as printed.
            prepare: Function at module level that prepares and returns what is timed.
            table: Configurations of one table take turns and are compared with each other;
                tables are measured one after the other.
            group: Configurations that are variants of one thing (stock with 0, 1 or 2
                workers): the fastest of a group can be the baseline.
            is_limit: It does the part of the work that no loader can leave out, and nothing
                else; the others are given as shares of its rate.
            may_fail: A failure is a row of the table and not the end: for what is not ours.
            may_be_given_up: It is not run again where its first run takes over twice as long as the
                quickest of its table but for its limit: for exhaustive searches. With a new process for
                each run, it is not where the median of three or more takes 1.3 times as long.
            runs_in_process: Make each run in a new process: prepare, warm up, run so many times
                and take the middle one; in the first process only once. For configurations that differ as much from one process to the next as
                from each other; they have one process for all runs otherwise.
            max_samples_per_second: No true rate of this one can be higher.
            **options: Passed to `prepare`; picklable.

        Raises:
            BenchmarkError: If the name is taken.
        """
        if any(name == known.name for known in self._configurations):
            raise BenchmarkError(f"there already is a configuration {name!r}.")
        self._configurations.append(
            Configuration(
                name,
                table,
                group or name,
                prepare,
                options,
                is_limit,
                may_fail,
                max_samples_per_second or self._max_samples_per_second,
                may_be_given_up,
                runs_in_process,
            )
        )

    def main(
        self,
        *,
        baseline: str | None = None,
        compared: str = "wall_seconds",
        in_groups: bool = False,
        is_chosen_apart: bool = False,
    ) -> dict[str, Any]:
        """Run everything, print the tables, write the JSON file when asked; return the report.

        Args:
            baseline: Group (or name) whose fastest member in a table the others of that table
                are compared with; `FIRST` for the first of each table.
            compared: Quantity by which they are; a rate if it ends in ``_per_second``. `PEAK` is the
                peak of memory.
            is_chosen_apart: Choose the baseline of each round by the other rounds: the quickest of
                many, chosen by the runs that it is compared in, is partly the luckiest.
            in_groups: Each group is a table, and compared with its first.
        """
        arguments = self.arguments()
        self._is_smoke = arguments.smoke
        named = [one for one in self._configurations if (arguments.only or "") in one.name]
        tables = {one.table for one in named}
        chosen = [
            one
            for one in self._configurations
            if one in named or (one.is_limit and one.table in tables)
        ]
        if in_groups:
            baseline = FIRST
            chosen = [replace(one, table=one.group) for one in chosen]
        measurements: dict[str, list[Measurement]] = {}
        peaks: dict[str, int] = {}
        reasons: dict[str, str] = {}
        with _saving_if_cut_off(
            arguments.json, {"question": self.question, **self._facts}, measurements
        ):
            for table in dict.fromkeys(one.table for one in chosen):
                members = [one for one in chosen if one.table == table]
                is_anew = any(one.runs_in_process for one in members)
                num_runs = arguments.processes if is_anew else arguments.runs
                num_runs = 1 if arguments.smoke else num_runs
                self._run_table(members, num_runs, measurements, peaks, reasons)
        report = make_report(
            chosen,
            measurements,
            peaks,
            reasons,
            baseline=baseline,
            compared=compared,
            is_chosen_apart=is_chosen_apart,
            is_trusted=not arguments.smoke,
        )
        print_table(self.question, report)
        if arguments.smoke:
            print("smoke run: these numbers mean nothing.")
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            about = {"question": self.question, **self._facts, "smoke": arguments.smoke}
            arguments.json.write_text(
                json.dumps({**about, **report}, indent=1) + "\n", encoding="utf-8"
            )
        return report

    def _run_table(
        self,
        members: Sequence[Configuration],
        num_runs: int,
        measurements: dict[str, list[Measurement]],
        peaks: dict[str, int],
        reasons: dict[str, str],
    ) -> None:
        """Measure every configuration `num_runs` times in turn, then watch its memory."""
        homes: dict[str, Home] = {}
        measurements |= {one.name: [] for one in members}
        try:
            self._prepare(members, homes, reasons)
            for turn in range(num_runs):
                # Every other round backwards, so that nobody always follows the same one.
                for one in members if turn % 2 == 0 else reversed(members):
                    if one.name in reasons:
                        continue
                    with _noting(one, reasons):
                        measurement = homes[one.name].measure()
                        self._check(one, measurement)
                        measurements[one.name].append(measurement)
                if turn < num_runs - 1:
                    reasons |= _given_up(members, measurements)
            for one in members:
                if one.name in reasons:
                    continue
                with _noting(one, reasons):
                    # For a smoke run, one was enough to show that it runs.
                    peaks[one.name] = homes[one.name].peak_bytes(runs=not self._is_smoke)
        finally:
            for home in homes.values():
                home.close()

    def _prepare(
        self, members: Sequence[Configuration], homes: dict[str, Home], reasons: dict[str, str]
    ) -> None:
        """Open a home for every configuration, and warm it up."""
        at_once = self._is_smoke or self._prepares_at_once
        for one in members if at_once else ():
            homes[one.name] = self._open(one)
        for one in members:
            with _noting(one, reasons):
                if not at_once:
                    homes[one.name] = self._open(one)
                homes[one.name].wait()
                if not self._is_smoke:
                    homes[one.name].warm_up()

    def _open(self, configuration: Configuration) -> Home:
        if not self.isolate:
            return Here(configuration)
        start_method: StartMethod = "spawn"
        if self._is_smoke and _num_threads() == self._num_threads:
            start_method = "fork"  # no thread has started that may hold a lock
        elif self._is_smoke or self._starts_quickly:
            # By the name of what imports all others; of the script itself older Pythons do not know where it is.
            multiprocessing.set_forkserver_preload(["__main__", "fastloader.tuning"])
            start_method = "forkserver"
        is_anew = configuration.runs_in_process and not self._is_smoke
        return (Anew if is_anew else Apart)(configuration, start_method)

    def _check(self, configuration: Configuration, measurement: Measurement) -> None:
        """Reject a rate that no machine could reach: the count or the clock is wrong.

        Raises:
            BenchmarkError: If the rate of samples or bytes is over its bound.
        """
        if self._max_bytes_per_second is None:
            self._max_bytes_per_second = 2 * usable_cpus() * copy_bytes_per_second()
        quantities = measurement.quantities()
        for unit, limit in (
            ("samples_per_second", configuration.max_samples_per_second),
            ("bytes_per_second", self._max_bytes_per_second),
        ):
            rate = quantities.get(unit, 0.0)
            if limit is not None and rate > limit:
                raise BenchmarkError(
                    f"{configuration.name}: {unit} is {rate:.3g}, but at most {limit:.3g} is "
                    "possible; look at what is counted and when the clock runs."
                )


def _num_threads() -> int:
    number: int = psutil.Process().num_threads()
    return number


def _given_up(
    members: Sequence[Configuration], measurements: Mapping[str, Sequence[Measurement]]
) -> dict[str, str]:
    """Return which are not worth another run, by their names, and why."""
    num_runs = {one.name: len(measurements[one.name]) for one in members}
    seconds = {
        one.name: statistics.median(run.wall_seconds for run in measurements[one.name])
        for one in members
        if num_runs[one.name]
    }
    most_runs = max(num_runs.values(), default=0)
    running = [one for one in members if num_runs[one.name] == most_runs > 0]
    quickest = min((seconds[one.name] for one in running if not one.is_limit), default=0.0)
    return {
        one.name: f"took {seconds[one.name] / quickest:.1f} times as long as the quickest"
        for one in running
        if one.may_be_given_up and seconds[one.name] > _hopeless(one, most_runs) * quickest
    }


def _hopeless(one: Configuration, num_runs: int) -> float:
    """Return how many times the time of the quickest is too much after so many runs."""
    if num_runs == 1:
        return _HOPELESS
    return _HOPELESS_LATER if one.runs_in_process and num_runs > 2 else float("inf")


@contextlib.contextmanager
def _saving_if_cut_off(
    path: Path | None,
    about: Mapping[str, Any],
    measurements: Mapping[str, Sequence[Measurement]],
) -> Iterator[None]:
    """Write what was measured beside the file of results when not all could be, and say why.

    A signal that would end the process without a word is an error here, too.
    """
    try:
        with told_of_signals():
            yield
    except BaseException as error:
        runs = {
            name: [one.quantities() for one in found] for name, found in measurements.items()
        }
        if path is not None:
            partial = path.with_suffix(".partial.json")
            partial.parent.mkdir(parents=True, exist_ok=True)
            reason = f"{type(error).__name__}: {error}"
            document = {**about, "cut_off_by": reason, "runs": runs}
            partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        where = "" if path is None else f": see {partial}"
        done = sum(map(len, runs.values()))
        print(f"not complete after {done} runs of {len(runs)} configurations{where}.")
        raise


@contextlib.contextmanager
def _noting(one: Configuration, reasons: dict[str, str]) -> Iterator[None]:
    """Turn what keeps a configuration from running into a row of the table.

    Raises:
        BenchmarkError: If it is one that has to run.
    """
    try:
        yield
    except CannotRun as reason:
        reasons[one.name] = str(reason)
    except BenchmarkError as error:
        if not one.may_fail:
            raise
        reasons[one.name] = str(error).strip().rpartition("\n")[2]
