"""Turn the results of a benchmark into Markdown tables."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from _verdict import PEAK, why_missing

__all__ = [
    "baseline_of", "describe_machine", "is_limit", "label_of", "name_quantity", "rate_of",
    "read_results", "tables_of", "write_number", "write_tables", "write_times",
]  # fmt: skip

_RATES = {
    "samples_per_second": "samples/s",
    "bytes_per_second": "GB/s",
    "batches_per_second": "batches/s",
}
_SHARED = {
    *_RATES, "wall_seconds", "cpu_seconds", "page_faults", "page_faults_per_batch",
    "cpu_seconds_per_batch",
}  # fmt: skip

_MANY_TABLES = 20
"""With more than these one looks for a row, not for a table."""


def read_results(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was measured by name, whichever way a script wrote it; empty if it has none."""
    results = document.get("results")
    if isinstance(results, dict):
        return results
    if isinstance(document.get("runs"), dict):
        return {
            name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for name, runs in document["runs"].items()
        }
    if isinstance(document.get("cells"), list):
        return _sum_up_cells(document["cells"])
    return {}


def _sum_up_cells(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = {}
    for num_workers in sorted({cell["num_workers"] for cell in cells}):
        some = [cell for cell in cells if cell["num_workers"] == num_workers]
        ratios = [cell["ratio"] for cell in some]
        found[f"{num_workers} workers"] = {
            "cells": len(some),
            "cells behind": sum(cell["verdict"] == "behind" for cell in some),
            "cells open": sum(cell["verdict"] == "open" for cell in some),
            "x stock, median": statistics.median(ratios),
            "x stock, lowest": min(ratios),
            "x stock, highest": max(ratios),
        }
    return found


def tables_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results by table; older files have groups instead."""
    in_groups = document.get("baseline") == "the first of each group"
    tables: dict[str, dict[str, Any]] = {}
    for name, result in document["results"].items():
        table = result.get("table") or (result.get("group", "") if in_groups else "")
        tables.setdefault(table, {})[name] = result
    return tables


def baseline_of(document: Mapping[str, Any], table: str, members: Mapping[str, Any]) -> str:
    """Return the name of what the others of a table are compared with; empty if nothing."""
    known = document.get("baselines", {}).get(table)
    if known:
        return str(known)
    if document.get("baseline") == "the first of each group":
        return next(iter(members))
    found = document.get("baseline") or ""
    return found if found in members else ""


def label_of(name: str, table: str) -> str:
    """Return a name without that of its table."""
    for prefix in (f"{table}: ", f"{table}, "):
        if table and name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def is_limit(name: str, result: Mapping[str, Any]) -> bool:
    """Return whether a row is the limit; older files say so by its name."""
    return bool(result.get("is_limit", name.startswith("limit")))


def rate_of(document: Mapping[str, Any]) -> str:
    """Return the quantity that a table is about."""
    compared = document.get("compared", "wall_seconds")
    if compared != "wall_seconds":
        return str(compared)
    shown = [
        result["summary"] for result in document["results"].values() if "summary" in result
    ]
    for rate in _RATES:
        if all(rate in summary for summary in shown):
            return rate
    return "wall_seconds"


def describe_machine(document: Mapping[str, Any]) -> str:
    """Return a few words about where it ran, and with what."""
    machine, versions = document["machine"], document["versions"]
    where = f"{machine['cpu']}, {machine['usable_cpus']} cores"
    for name in dict.fromkeys(machine.get("accelerators", [])):
        where += f", {name}"
    return (
        f"{where}; torch {versions['torch']}, Python {versions['python']}; "
        f"load {machine['load_average']} before"
    )


def write_tables(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table for each that was measured; of many small ones, of all together."""
    tables = tables_of(document)
    if len(tables) > _MANY_TABLES:
        yield from _write_together(document, tables)
        return
    for table, members in tables.items():
        if table:
            yield f"**{table}**"
            yield ""
        measured = {name: one for name, one in members.items() if "summary" in one}
        if measured:
            yield from _write_measured(document, table, members)
        else:
            yield from _write_plain(members, table)
        yield ""


def _write_together(
    document: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield one table with a row for each table and a column for each of their rows."""
    labels = list(
        dict.fromkeys(
            label_of(name, table) for table, members in tables.items() for name in members
        )
    )
    main = rate_of(document)
    yield f"| | {' | '.join(labels)} |"
    yield f"|---|{'--:|' * len(labels)}"
    for table, members in tables.items():
        baseline = baseline_of(document, table, members)
        cells = dict.fromkeys(labels, "")
        for name, one in members.items():
            label = label_of(name, table)
            if "cannot_run" in one:
                cells[label] = why_missing(one).replace("|", "/")
            elif name == baseline:
                cells[label] = _spread(main, one["summary"])
            else:
                cells[label] = _write_ratio(one["times_baseline"])
        yield f"| {table} | {' | '.join(cells.values())} |"
    yield ""
    yield (
        f"The first column in {name_quantity(main)}, the others in times the first. CPU time and "
        "peak memory of each are in the file."
    )
    yield ""


def _write_plain(members: Mapping[str, Any], table: str) -> Iterator[str]:
    """Yield a table of whatever numbers there are."""
    numbers = list(
        dict.fromkeys(
            key
            for one in members.values()
            for key, value in one.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        )
    )
    yield f"| | {' | '.join(name_quantity(key) for key in numbers)} |"
    yield f"|---|{'--:|' * len(numbers)}"
    for name, one in members.items():
        if "cannot_run" in one:
            yield _refusal(label_of(name, table), one, len(numbers))
        else:
            cells = [write_number(key, one[key]) if key in one else "" for key in numbers]
            yield f"| {label_of(name, table)} | {' | '.join(cells)} |"


def _write_measured(
    document: Mapping[str, Any], table: str, members: Mapping[str, Any]
) -> Iterator[str]:
    shown = [one["summary"] for one in members.values() if "summary" in one]
    keys = list(dict.fromkeys(key for summary in shown for key in summary))
    extra = [key for key in keys if key not in _SHARED]
    rates = (
        [key for key in _RATES if key in keys]
        if not any("_per_second" in key for key in extra)
        else []
    )
    main = rate_of(document)
    columns = [main, *(key for key in (*rates, *extra) if key != main), "cpu_seconds"]
    if "page_faults_per_batch" in keys:
        columns.append("page_faults_per_batch")
    has_ratio = any("times_baseline" in one for one in members.values())
    has_share = any("share_of_limit" in one for one in members.values())
    has_peak = main != PEAK
    heads = [name_quantity(key) for key in columns] + ["peak MiB"] * has_peak
    heads += ["x baseline"] * has_ratio + ["of the limit"] * has_share
    yield f"| | {' | '.join(heads)} |"
    yield f"|---|{'--:|' * len(heads)}"
    baseline = baseline_of(document, table, members)
    for name, one in members.items():
        label = label_of(name, table)
        if "cannot_run" in one:
            yield _refusal(label, one, len(heads))
            continue
        cells = [_spread(columns[0], one["summary"])]
        cells += [_median(key, one["summary"]) for key in columns[1:]]
        if has_peak:
            cells.append("-" if one[PEAK] is None else f"{one[PEAK] / 2**20:,.0f}")
        if has_ratio:
            ratio = one.get("times_baseline")
            cells.append(_write_ratio(ratio) if ratio and name != baseline else "")
        if has_share:
            share = one.get("share_of_limit")
            cells.append(f"{share['median']:.0%}" if share else "")
        shown_label = f"**{label}**" if label.startswith(("FastLoader", "ours")) else label
        yield f"| {shown_label} | {' | '.join(cells)} |"
    if baseline:
        yield ""
        yield f"Baseline: {label_of(baseline, table)}."


def _refusal(label: str, result: Mapping[str, Any], num_columns: int) -> str:
    reason = why_missing(result).replace("|", "/")
    return f"| {label} | {reason} {'| ' * num_columns}|"


def name_quantity(key: str) -> str:
    """Return the name of a quantity and the unit in which `write_number` writes it."""
    if key in _RATES:
        return _RATES[key]
    words = {
        "wall_seconds": "wall ms", "cpu_seconds": "CPU ms", "page_faults_per_batch": "faults/batch",
    }  # fmt: skip
    if key in words:
        return words[key]
    for ending, unit in (
        ("_samples_per_second", "samples/s"), ("_per_second", "/s"), ("_seconds", "ms"),
        ("_seconds_low", "ms, low"), ("_seconds_high", "ms, high"), ("_bytes", "MB"),
        ("_share", "share"),
    ):  # fmt: skip
        if key.endswith(ending):
            return f"{key.removesuffix(ending).replace('_', ' ')} {unit}"
    return key.replace("_", " ")


def write_number(key: str, value: float) -> str:
    """Return a value of a quantity, in the unit that `name_quantity` names."""
    scale = 1.0
    if key.endswith(("_seconds", "_seconds_low", "_seconds_high")):
        scale = 1e3
    elif key == "bytes_per_second":
        scale = 1e-9
    elif key.endswith("_bytes"):
        scale = 1e-6
    scaled = value * scale
    if key.endswith("_share") or key == "share":
        shown = f"{scaled:.0%}" if scaled >= 0.1 else f"{scaled:.1%}"
        return shown.removeprefix("-") if shown == "-0.0%" else shown
    if abs(scaled) >= 100:
        return f"{scaled:,.0f}"
    return f"{scaled:.3g}"


def _median(key: str, summary: Mapping[str, Any]) -> str:
    return write_number(key, summary[key]["median"]) if key in summary else ""


def _spread(key: str, summary: Mapping[str, Any]) -> str:
    if key not in summary:
        return ""
    parts = [write_number(key, summary[key][part]) for part in ("median", "q1", "q3")]
    return f"{parts[0]} [{parts[1]}, {parts[2]}]"


def write_times(ratio: float) -> str:
    """Return a ratio, without decimals where it is large."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _write_ratio(ratio: Mapping[str, float]) -> str:
    parts = [write_times(ratio[part]) for part in ("median", "q1", "q3")]
    return f"{parts[0]} [{parts[1]}, {parts[2]}]"
