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
