"""Write docs/benchmarks.md and its plots from the committed results.

    python benchmarks/write_report.py            # writes the page, and the plots whose results changed
    python benchmarks/write_report.py --check    # fails if the page or a plot is not up to date

Every question is the docstring of the script that asked it; every figure is of a JSON file in
benchmarks/results/<date>-<machine>/. Of each machine the newest file of a name counts.
"""

import argparse
import ast
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _pages import describe_machine, read_results, write_tables

__all__ = ["Report", "find_results", "outdated", "write_page"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "pictures" / "benchmarks"

_INTRO = """\
# Benchmarks

<!-- Written by benchmarks/write_report.py from benchmarks/results: change those, then run it. -->

Every table is of one run of a script in `benchmarks/`, in which all its rows took turns; read the
ratios, which were made round by round, rather than the absolute figures of one machine on one day.
Figures are medians, with the first and third quartile in brackets. **x baseline** compares with the
row that is named under the table, **of the limit** with the row that does the part of the work that
no loader can leave out, and nothing else; where that row is the baseline itself, or there is none, each
question's **Limit** says so. CPU seconds are those of the whole process tree; peak
memory counts shared pages once. How it is measured is told in `benchmarks/README.md`, and what
follows from it in [](reference/benchmark-results.md).
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one file."""

    name: str
    """Of the file, such as ``in-memory-small``."""
    machine: str
    path: Path
    script: str
    document: dict[str, Any]
    digest: str

    @property
    def plot(self) -> Path:
        """Where its plot is."""
        return PLOTS / f"{self.machine}-{self.name}.svg"


def find_results() -> list[Report]:
    """Return the newest file of each name and machine, by script."""
    newest: dict[tuple[str, str], Report] = {}
    for path in sorted(RESULTS.glob("*/*.json")):
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        document["results"] = read_results(document)
        script = re.search(r"bench_\w+", document.get("command", ""))
        if script is None or not document["results"]:
            continue  # of another program, such as the demo
        machine = re.sub(r"^\d{4}-\d\d-\d\d-", "", path.parent.name)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        report = Report(path.stem, machine, path, script[0], document, digest)
        newest[path.stem, machine] = report
    scripts = [script for script in _ORDER if _docstring_of(script)]
    known = {script: place for place, script in enumerate(scripts)}
    return sorted(
        newest.values(),
        key=lambda one: (known.get(one.script, 99), one.script, one.name, one.machine),
    )


_ORDER = (
    "bench_in_memory", "bench_transport", "bench_decode", "bench_epochs", "bench_startup",
    "bench_held_data", "bench_items", "bench_loaders", "bench_training", "bench_tables",
    "bench_rows", "bench_preload", "bench_image_folders", "bench_cache_memory", "bench_augment",
    "bench_statistics", "bench_device", "bench_end_to_end", "bench_multiscale", "bench_cells",
    "bench_reference_workloads", "bench_thread_workers", "bench_stats_overhead",
)  # fmt: skip


_BY_RATIO = {"bench_augment", "bench_preload", "bench_reference_workloads", "bench_tables"}
"""Their tables have little in common but the question, so that plots show ratios."""


def _docstring_of(script: str) -> str:
    path = ROOT / "benchmarks" / f"{script}.py"
    if not path.exists():
        return ""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return inspect.cleandoc(ast.get_docstring(tree) or "")


def write_page(reports: list[Report]) -> str:
    """Return the page."""
    lines = [_INTRO]
    scripts = dict.fromkeys(report.script for report in reports)
    for script in scripts:
        title, _, rest = _docstring_of(script).partition("\n")
        if not title:
            continue
        lines += [f"## {title}", "", *_explain(rest), ""]
        for report in reports:
            if report.script == script:
                lines += _section(report)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _explain(docstring: str) -> Iterator[str]:
    """Yield the parts of a docstring: ``Question: ...`` and the lines that belong to it."""
    for line in docstring.strip().splitlines():
        found = re.match(
            r"(Question|Held fixed|Baseline|Method|Limit|Result|Losing cases): (.*)", line
        )
        if line.startswith("Command:"):
            yield f"* **Command**: `{line.partition(': ')[2]}`"
        elif found:
            yield f"* **{found[1]}**: {_plain(found[2])}"
        elif line.startswith("    python "):
            yield f"```console\n$ {line.strip()}\n```"
        else:
            yield f"  {_plain(line.strip())}" if line.startswith("    ") else _plain(line)


def _plain(text: str) -> str:
    return text.replace("``", "`")


def _section(report: Report) -> Iterator[str]:
    yield f"### {report.name.replace('-', ' ').capitalize()}, {report.machine.replace('-', ' ')}"
    yield ""
    yield describe_machine(report.document, report.path.relative_to(ROOT).as_posix())
    yield ""
    if _has_runs(report):
        picture = report.plot.relative_to(PAGE.parent).as_posix()
        yield f"![{report.name}, {report.machine}, as a plot]({picture})"
        yield ""
    yield from write_tables(report.document)


def _has_runs(report: Report) -> bool:
    return any("summary" in result for result in report.document["results"].values())


def outdated(reports: list[Report]) -> list[Path]:
    """Return the page and the plots that are not those of the results."""
    found = []
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != write_page(reports):
        found.append(PAGE)
    for report in reports:
        if _has_runs(report):
            is_there = report.plot.exists()
            if not is_there or report.digest not in report.plot.read_text(encoding="utf-8"):
                found.append(report.plot)
    return found


def main() -> None:
    """Write what is not up to date, or say so."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--all", action="store_true", help="draw all plots anew")
    arguments = parser.parse_args()
    reports = find_results()
    old = outdated(reports)
    if arguments.check:
        for path in old:
            print(
                f"{path.relative_to(ROOT)} is not up to date: run benchmarks/write_report.py."
            )
        sys.exit(1 if old else 0)
    from _plots import draw  # noqa: PLC0415 - the check needs no matplotlib

    PLOTS.mkdir(parents=True, exist_ok=True)
    for report in reports:
        if _has_runs(report) and (arguments.all or report.plot in old):
            by_ratio = report.script in _BY_RATIO
            draw(report.document, report.plot, report.digest, by_ratio=by_ratio)
    expected = {report.plot for report in reports}
    for path in PLOTS.glob("*.svg"):
        if path not in expected:
            path.unlink()
    PAGE.write_text(write_page(reports), encoding="utf-8")


if __name__ == "__main__":
    main()
