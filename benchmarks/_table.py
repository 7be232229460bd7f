"""Print a report as a table for a terminal."""

import sys
from collections.abc import Mapping
from typing import Any

from _verdict import why_missing

__all__ = ["print_table"]

_COLUMNS = (
    "configuration", "wall ms [q1, q3]", "CPU ms", "samples/s", "GB/s", "faults/batch",
    "peak MiB", "x baseline [q1, q3]", "of the limit",
)  # fmt: skip


def print_table(question: str, report: Mapping[str, Any]) -> None:
    """Print the medians of all configurations, table by table."""
    print(question)
    tables = dict.fromkeys(result["table"] for result in report["results"].values())
    for table in tables:
        members = {
            name: result
            for name, result in report["results"].items()
            if result["table"] == table
        }
        if table:
            print(f"\n{table}")
        _print_rows([_COLUMNS, *(_row(name, one) for name, one in members.items())])
        for name, one in members.items():
            extra = _values(one)
            if extra:
                print(f"  {name}: {extra}")
        if table in report["baselines"]:
            print(f"baseline: {report['baselines'][table]}")
    sys.stdout.flush()


def _print_rows(rows: list[tuple[str, ...]]) -> None:
    complete = [row for row in rows if len(row) == len(_COLUMNS)]
    widths = [max(len(row[column]) for row in complete) for column in range(len(_COLUMNS))]
    widths[0] = max(len(row[0]) for row in rows)
    for row in rows:
        cells = zip(row[1:], widths[1:], strict=False)
        rest = [cell.rjust(width) for cell, width in cells] if row in complete else row[1:]
        print("  ".join([row[0].ljust(widths[0]), *rest]))


def _row(name: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    if "cannot_run" in result:
        return (name, why_missing(result))
    summary = result["summary"]

    def cell(key: str, scale: float = 1.0, form: str = ",.0f") -> str:
        return format(summary[key]["median"] * scale, form) if key in summary else "-"

    def spread(key: str, form: str) -> str:
        if key not in result:
            return "-"
        median, q1, q3 = (format(result[key][part], form) for part in ("median", "q1", "q3"))
        return f"{median} [{q1}, {q3}]"

    wall = summary["wall_seconds"]
    return (
        name,
        f"{wall['median'] * 1e3:,.1f} [{wall['q1'] * 1e3:,.1f}, {wall['q3'] * 1e3:,.1f}]",
        cell("cpu_seconds", 1e3, ",.1f"),
        cell("samples_per_second"),
        cell("bytes_per_second", 1e-9, ".2f"),
        cell("page_faults_per_batch", 1.0, ",.1f"),
        format(result["peak_memory_bytes"] / 2**20, ",.0f"),
        spread("times_baseline", ".2f"),
        format(result["share_of_limit"]["median"], ".0%")
        if "share_of_limit" in result
        else "-",
    )


_KNOWN = {
    "wall_seconds", "cpu_seconds", "page_faults", "samples_per_second", "batches_per_second",
    "bytes_per_second", "page_faults_per_batch", "cpu_seconds_per_batch",
}  # fmt: skip


def _values(result: Mapping[str, Any]) -> str:
    """Return what a script measured beyond what every script does."""
    summary = result.get("summary", {})
    return ", ".join(
        f"{key} {summary[key]['median']:.4g}" for key in summary if key not in _KNOWN
    )
