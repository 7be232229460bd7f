"""Write docs/benchmarks.md, the pages under docs/benchmarks/, the plots and the tables of README.md.

    python benchmarks/write_report.py            # writes the pages, and the plots whose results changed
    python benchmarks/write_report.py --check    # fails if a page or a plot is not up to date

All are written from the committed results. The first page has one line for each file of results; each script has a page of its own with all its
tables. Every question is the docstring of the script that asked it; every figure is of a JSON file in
benchmarks/results/<date>-<machine>/. Of each machine the newest file of a name counts.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from os.path import relpath
from pathlib import Path

from _overview import summarize
from _pages import describe_machine, write_tables
from _readme import README, write_readme
from _reports import ROOT, Report, by_script, docstring_of, find_results

__all__ = ["outdated", "write_pages"]

_OVERVIEW = ROOT / "docs" / "benchmarks.md"
_PAGES = ROOT / "docs" / "benchmarks"
_PLOTS = ROOT / "docs" / "pictures" / "benchmarks"

_WARNING = """\
<!-- Written by benchmarks/write_report.py from benchmarks/results: change those, then run it. -->
"""

_INTRO = f"""\
# Benchmarks

{_WARNING}
Each question has a page with all its tables, how they were measured, and the command. Here is one line
for each run. [](reference/benchmark-results.md) tells what limits each kind of work.

* **x baseline**: times as good as what is compared with, the best of stock where a question does not say
  otherwise: one row of ours, or the lowest and the highest of them, and of many tables those whose best
  row of ours is the lowest and the highest.
* **of the limit**: of the part of the work that no loader can leave out, and nothing else, measured in
  the same run. Where what is compared with is that part, or there is none, each question's **Limit** says so.
* **measured**: on which machine, on what day, and at which commit. What later commits changed is not in it.

All rows of a run took turns, and comparisons were made round by round. Read those rather than the absolute
figures of one machine on one day. In the tables figures are medians, with the first and third quartile
in brackets; CPU seconds are those of the whole process tree, and peak memory counts shared pages once.
`benchmarks/README.md` tells more.
"""

_BY_RATIO = {"bench_augment", "bench_preload", "bench_reference_workloads", "bench_tables"}
"""Their tables have little in common but the question, so that plots show ratios."""


def write_pages(reports: Sequence[Report]) -> dict[Path, str]:
    """Return README.md, the overview and the page of each script, by where they belong."""
    pages = {
        _page_of(script): _write_page(script, some)
        for script, some in by_script(reports).items()
    }
    return {README: write_readme(reports), _OVERVIEW: _write_overview(reports), **pages}


def _page_of(script: str) -> Path:
    return _PAGES / f"{script.removeprefix('bench_').replace('_', '-')}.md"


def _write_overview(reports: Sequence[Report]) -> str:
    lines = [_INTRO]
    for script, some in by_script(reports).items():
        title = docstring_of(script).partition("\n")[0]
        lines += [
            f"**[{title}](benchmarks/{_page_of(script).name})**",
            "",
            "| | x baseline | of the limit | compared with | measured |",
            "|---|---|---|---|---|",
            *(f"| {_link_to(report)} | {summarize(report)} |" for report in some),
            "",
        ]
    names = "\n".join(f"benchmarks/{_page_of(script).stem}" for script in by_script(reports))
    lines += ["```{toctree}", ":hidden:", names, "```"]
    return "\n".join(lines) + "\n"


def _write_page(script: str, reports: Sequence[Report]) -> str:
    title, _, rest = docstring_of(script).partition("\n")
    lines = [f"# {title}", "", _WARNING, *_explain(rest), ""]
    lines += ["[How to read the tables](../benchmarks.md).", ""]
    for report in reports:
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


def _title_of(report: Report) -> str:
    return report.name.replace("-", " ").capitalize()


def _link_to(report: Report) -> str:
    anchor = f"{report.name}-{report.machine}".lower()  # as headings are turned into anchors
    return f"[{_title_of(report)}](benchmarks/{_page_of(report.script).name}#{anchor})"


def _section(report: Report) -> Iterator[str]:
    yield f"## {_title_of(report)}, {report.machine.replace('-', ' ')}"
    yield ""
    yield (
        f"**{report.date}, {report.commit}**: {describe_machine(report.document)}. "
        f"`{report.path.relative_to(ROOT).as_posix()}`, by `{report.document['command']}`."
    )
    yield ""
    if report.has_runs:
        picture = Path(relpath(report.plot, _PAGES)).as_posix()
        yield f"![{report.name}, {report.machine}, as a plot]({picture})"
        yield ""
    yield from write_tables(report.document)


def outdated(reports: Sequence[Report]) -> list[Path]:
    """Return the pages and the plots that are not those of the results, or are nobody's."""
    pages = write_pages(reports)
    found = [
        path
        for path, text in pages.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for report in reports:
        if report.has_runs:
            is_there = report.plot.exists()
            if not is_there or report.digest not in report.plot.read_text(encoding="utf-8"):
                found.append(report.plot)
    return found + _left_over(reports)


def _left_over(reports: Sequence[Report]) -> list[Path]:
    """Return the pages and plots of results that are no more."""
    expected = {*write_pages(reports), *(report.plot for report in reports if report.has_runs)}
    there = [*_PAGES.glob("*.md"), *_PLOTS.glob("*.svg")]
    return sorted(path for path in there if path not in expected)


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

    for folder in (_PAGES, _PLOTS):
        folder.mkdir(parents=True, exist_ok=True)
    for report in reports:
        if report.has_runs and (arguments.all or report.plot in old):
            by_ratio = report.script in _BY_RATIO
            draw(report.document, report.plot, report.digest, by_ratio=by_ratio)
    for path in _left_over(reports):
        path.unlink()
    for path, text in write_pages(reports).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
