"""Sum up each file of results in one line: how ours compare, and with what."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from _pages import (
    baseline_of,
    is_limit,
    label_of,
    name_quantity,
    rate_of,
    tables_of,
    write_number,
    write_times,
)
from _reports import Report
from _verdict import PEAK

__all__ = ["summarize"]

_OURS = {
    "bench_augment": r"batch|in place",
    "bench_cache_memory": r"shared|alone|disk",
    "bench_cells": r"workers",
    "bench_items": r"OMEArrowDataset",
    "bench_multiscale": r"MultiScale",
    "bench_preload": r"ours|OMEArrowDataset",
    "bench_reference_workloads": r"automatic|FastLoader",
    "bench_rows": r"ours",
    "bench_statistics": r"ChannelStatistics",
    "bench_stats_overhead": r"",
    "bench_tables": r"ours",
    "bench_thread_workers": r"automatic",
}
"""How labels of rows begin, or go on after a comma, that are not said to be of FastLoader."""

_PLAIN = {
    "bench_cache_memory": "copies",
    "bench_cells": "cells behind",
    "bench_multiscale": "step_seconds",
    "bench_stats_overhead": "share",
}
"""What to show of results without a baseline."""

_RIVALS = {
    "fixed": "the best fixed setting",
    "processes": "the best number of processes",
    "stock": "stock at its best",
}
"""What groups of rows are, of which the best is the baseline."""

_COMPARED = {
    "cpu_seconds": "CPU time",
    "first_batch_seconds": "time to the first batch",
    PEAK: "memory",
}
"""What else than speed rows are compared by."""

_Row = tuple[str, Mapping[str, Any]]


def summarize(report: Report) -> str:
    """Return the cells of a row: ours, of the limit, compared with, machine, date and commit.

    Of several rows of ours the lowest and the highest are named; of several tables the tables
    whose best row is the lowest and the highest.
    """
    tables = tables_of(report.document)
    rows: list[_Row] = []
    rivals: dict[str, None] = {}
    for table, members in tables.items():
        baseline = baseline_of(report.document, table, members)
        ours = [
            (label_of(name, table), one)
            for name, one in members.items()
            if name != baseline and _is_ours(report.script, label_of(name, table), one)
        ]
        if baseline:
            ours = [(label, one) for label, one in ours if "times_baseline" in one]
            rivals[
                _name_rival(members[baseline].get("group"), label_of(baseline, table), table)
            ] = None
        if ours and len(tables) > 1:
            ours = [(table, max((one for _, one in ours), key=_times))]
        rows += ours
    return " | ".join((
        _ours_cell(report, rows, len(tables)),
        _limit_cell(rows),
        _rival_cell(report, list(rivals)),
        f"{report.machine.replace('-', ' ')}, {report.date}, {report.commit}",
    ))


def _is_ours(script: str, label: str, result: Mapping[str, Any]) -> bool:
    if "cannot_run" in result or is_limit(label, result):
        return False
    return re.search(rf"\b({_OURS.get(script, 'FastLoader')})", label) is not None


def _times(result: Mapping[str, Any]) -> float:
    return float(result["times_baseline"]["median"])


def _name_rival(group: str | None, label: str, table: str) -> str:
    """Name a baseline, by its group if it has one beside that of its table."""
    if group in _RIVALS:
        return _RIVALS[group]
    return label if group in {None, "", table} else label_of(group, table)


def _ours_cell(report: Report, rows: Sequence[_Row], num_tables: int) -> str:
    if not rows:
        return "-"
    if report.script in _PLAIN:
        key = _PLAIN[report.script]
        values = sorted(one[key] for _, one in rows)
        least, most = (write_number(key, value) for value in (values[0], values[-1]))
        return f"{name_quantity(key)}: {least}" + (f" to {most}" if most != least else "")
    in_order = sorted(rows, key=lambda row: _times(row[1]))
    ends = {write_times(_times(one)): label for label, one in (in_order[0], in_order[-1])}
    shown = [f"{times}x ({label})" for times, label in ends.items()]
    return " to ".join(shown) + (f", {num_tables} tables" if num_tables > 1 else "")


def _limit_cell(rows: Sequence[_Row]) -> str:
    shares = [one["share_of_limit"]["median"] for _, one in rows if "share_of_limit" in one]
    if not shares:
        return "-"
    return " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares))))


def _rival_cell(report: Report, rivals: Sequence[str]) -> str:
    """Name what ours are compared with, and by what if that is not speed."""
    if not rivals:
        return "-"
    compared = _COMPARED.get(rate_of(report.document))
    return " or ".join(rivals) + (f", by {compared}" if compared else "")
