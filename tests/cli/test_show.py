"""A report is tables on a terminal that has rich, and plain text anywhere else."""

import re
import sys

import pytest

from fastloader.cli import _show
from fastloader.cli._report import Report
from fastloader.cli._show import show

CELLS = [("loader", "samples/s", "wait %"), ("a [b] c", "1,234", "-"), ("stock", "7", "100")]
REPORT = Report("plain text", {}, parts=(CELLS, "and a word"))


@pytest.fixture
def terminal(monkeypatch):
    """Lets output go to a terminal of a given width from the call on."""
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")

    def open_terminal(width):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return open_terminal


def read_out(capsys):
    """Return what was printed, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


def test_a_terminal_gets_tables(terminal, capsys):
    terminal(80)

    show(REPORT)

    lines = [line.split("  ") for line in read_out(capsys).splitlines()]
    words = [[word.strip() for word in line if word.strip()] for line in lines]
    assert ["loader", "samples/s", "wait %"] in words
    assert ["a [b] c", "1,234", "-"] in words
    assert ["and a word"] in words


def test_numbers_in_more_columns_than_there_is_room_for_become_rows(terminal, capsys):
    terminal(31)

    show(REPORT)

    assert "samples/s     1,234       7" in read_out(capsys)


def test_where_rows_are_too_long_as_well_each_has_a_table_and_no_number_is_cut(
    terminal, capsys
):
    terminal(24)

    show(REPORT)

    lines = [line.split() for line in read_out(capsys).splitlines()]
    assert lines.count(["samples/s", "1,234"]) == 1
    assert lines.count(["samples/s", "7"]) == 1
    assert ["loader", "stock"] in lines


def test_a_file_gets_plain_text(capsys):
    show(REPORT)

    assert capsys.readouterr().out == "plain text\n"


def test_without_rich_a_terminal_gets_plain_text(terminal, monkeypatch, capsys):
    terminal(80)
    monkeypatch.setattr(_show, "find_spec", lambda _name: None)

    show(REPORT)

    assert capsys.readouterr().out == "plain text\n"


def test_what_is_no_table_stays_as_it_is(terminal, capsys):
    terminal(20)

    show(Report("a line that is much longer than the terminal", {}))

    assert capsys.readouterr().out == "a line that is much longer than the terminal\n"
