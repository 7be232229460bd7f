import pytest

from write_report import find_results, outdated, write_page


@pytest.fixture(scope="module")
def reports():
    return find_results()


def test_the_page_and_the_plots_are_those_of_the_committed_results(reports):
    assert outdated(reports) == [], "run: python benchmarks/write_report.py"


def test_every_result_has_its_file_on_the_page(reports):
    page = write_page(reports)

    assert reports
    assert all(f"{one.path.parent.name}/{one.path.name}" in page for one in reports)


def test_a_result_that_changes_makes_its_plot_outdated(reports):
    one = next(one for one in reports if one.plot.exists())
    changed = type(one)(one.name, one.machine, one.path, one.script, one.document, "f" * 16)

    assert one.plot in outdated([changed])


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
