import re
from dataclasses import replace

import pytest

from _overview import summarize
from _pages import read_results, write_tables
from _reports import Report, find_results
from bench_cells import Cell, run_cell
from write_report import outdated, write_pages


@pytest.fixture(scope="module")
def reports():
    return find_results()


def a_ratio(median):
    return {"median": median, "q1": median, "q3": median}


def a_row(group, times, share=None, *, is_limit=False, table=""):
    row = {
        "table": table,
        "group": group,
        "is_limit": is_limit,
        "summary": {"samples_per_second": a_ratio(100 * times), "cpu_seconds": a_ratio(0.1)},
        "peak_memory_bytes": 2**20,
        "times_baseline": a_ratio(times),
    }
    return row if share is None else {**row, "share_of_limit": a_ratio(share)}


def a_report(results, tmp_path, *, script="bench_transport", **document):
    facts = {
        "date": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef with local changes",
        "compared": "samples_per_second",
        "results": results,
    }
    path = tmp_path / "2026-01-02-two-cores" / "name.json"
    return Report("name", "two-cores", path, script, facts | document, "digest")


def test_the_pages_and_the_plots_are_those_of_the_committed_results(reports):
    assert outdated(reports) == [], "run: python benchmarks/write_report.py"


def test_every_result_has_one_section_and_one_line_that_leads_to_it(reports):
    _readme, overview, *pages = write_pages(reports).values()

    assert reports
    for one in reports:
        file = f"{one.path.parent.name}/{one.path.name}"
        assert sum(page.count(f". `benchmarks/results/{file}`") for page in pages) == 1
        assert overview.count(f"#{one.name}-{one.machine})") == 1


def test_what_leads_to_a_section_is_the_anchor_of_its_heading(reports):
    _readme, overview, *pages = write_pages(reports).items()
    by_name = {path.name: text for path, text in pages}
    links = re.findall(r"\(benchmarks/([\w-]+\.md)#([\w-]+)\)", overview[1])

    assert len(links) == len(reports)
    for name, anchor in links:
        headings = re.findall(r"^## (.*)$", by_name[name], flags=re.MULTILINE)
        assert anchor in {one.lower().replace(",", "").replace(" ", "-") for one in headings}


def test_results_of_a_script_come_newest_first(reports):
    for script in {one.script for one in reports}:
        dates = [one.date for one in reports if one.script == script]
        assert dates == sorted(dates, reverse=True)


def test_a_line_names_our_lowest_and_highest_row_what_is_compared_and_of_which_code(tmp_path):
    results = {
        "DataLoader": a_row("stock", 1.0, 0.2),
        "FastLoader": a_row("FastLoader", 3.5, 0.7),
        "FastLoader, threads": a_row("FastLoader, threads", 0.9, 0.18),
        "Grain": a_row("Grain", 9.0, 1.8),
        "limit: copy": a_row("limit: copy", 5.0, is_limit=True),
    }

    line = summarize(a_report(results, tmp_path, baseline="DataLoader"))

    assert line == (
        "0.90x (FastLoader, threads) to 3.50x (FastLoader) | 18% to 70% | stock at its best | "
        "two cores, 2026-01-02, 0123456 with local changes"
    )


def test_a_line_about_many_tables_names_those_in_which_our_best_row_is_lowest_and_highest(
    tmp_path,
):
    results = {
        f"{table}: {label}": a_row(table, times, table=table)
        for table, ours in {
            "small": (2.0, 1.0),
            "large": (0.5, 0.4),
            "odd": (30.0, 1.0),
        }.items()
        for label, times in zip(("bare", "ours", "ours, at once"), (1.0, *ours), strict=True)
    }
    baselines = {table: f"{table}: bare" for table in ("small", "large", "odd")}

    line = summarize(a_report(results, tmp_path, script="bench_tables", baselines=baselines))

    assert line.startswith("0.50x (large) to 30x (odd), 3 tables | - | bare | ")


def test_a_line_about_cells_says_how_many_are_behind(tmp_path):
    cell = run_cell(Cell(0, 1, 4, 0), seconds=0.0, fewest_pairs=1)
    cells = [
        {**cell, "num_workers": workers, "verdict": verdict}
        for workers in (0, 2)
        for verdict in ("behind", "not behind", "behind")[workers // 2 :]
    ]
    results = read_results({"cells": cells})

    line = summarize(a_report(results, tmp_path, script="bench_cells"))

    assert line.startswith("cells behind: 1 to 2 | - | - | ")


def test_many_tables_become_one_with_a_row_for_each(tmp_path):
    tables = [f"number {n}" for n in range(30)]
    results = {
        f"{table}, {label}": a_row(table, times, table=table)
        for table in tables
        for label, times in (("one by one", 1.0), ("batch", 8.0))
    }
    baselines = {table: f"{table}, one by one" for table in tables}
    report = a_report(results, tmp_path, baselines=baselines)

    lines = list(write_tables(report.document))

    assert lines[0] == "| | one by one | batch |"
    assert lines[2] == "| number 0 | 100 [100, 100] | 8.00 [8.00, 8.00] |"
    assert len([line for line in lines if line.startswith("| number")]) == 30


def test_what_the_first_page_of_all_shows_must_have_been_measured(reports):
    rest = [one for one in reports if one.name != "device-uint8"]

    with pytest.raises(LookupError, match=r"FastLoader, 8 workers.*device-uint8"):
        write_pages(rest)


def test_a_result_that_changes_makes_its_plot_outdated(reports):
    one = next(one for one in reports if one.plot.exists())
    changed = [replace(each, digest="f" * 16) if each is one else each for each in reports]

    assert outdated(changed) == [one.plot]


def test_pages_and_plots_of_results_that_are_gone_are_outdated(reports):
    gone = reports[0]
    rest = [one for one in reports if one.script != gone.script]

    old = outdated(rest)

    assert gone.plot in old
    assert "in-memory.md" in {path.name for path in old}


def test_a_plot_by_ratio_shows_how_each_compares_with_the_baseline_of_its_row(tmp_path):
    pytest.importorskip("matplotlib")
    from _plots import draw

    def result(table, group, ratio):
        ratios = {"median": ratio, "q1": ratio, "q3": ratio}
        return {
            "table": table,
            "group": group,
            "is_limit": False,
            "summary": {"wall_seconds": {"median": 1e6, "q1": 1e6, "q3": 1e6}},
            "times_baseline": ratios,
        }

    names = {"ours": "", "1 worker": "fixed", "2 workers": "fixed"}
    document = {
        "compared": "wall_seconds",
        "results": {
            f"{table}: {name}": result(table, group, 0.5)
            for table in ("quick", "slow")
            for name, group in names.items()
        },
    }

    draw(document, tmp_path / "plot.svg", "digest", by_ratio=True)

    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "times the baseline of each row" in text
    assert text.count(">fixed<") == text.count(">ours<") == 1
    assert "worker" not in text
    assert "less is better" not in text
