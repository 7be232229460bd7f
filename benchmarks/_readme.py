"""Fill the tables of README.md from the published results."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from _pages import write_times
from _reports import ROOT, Report

__all__ = ["README", "write_readme"]

README = ROOT / "README.md"


class _Line(NamedTuple):
    work: str
    file: str
    """Of the results, such as ``device-float32``."""
    ours: Mapping[str, str]
    """Rows of ours, and what is said before their figures."""
    limit: str
    """Row of the limit."""
    limit_name: str


_ONE_WORKER = {"FastLoader, same workers, 1 workers": ""}
_LINES = (
    _Line(
        "float32 batches of 77 MB to an H200, 8 workers", "device-float32",
        {"FastLoader, 8 workers": ""}, "limit: pinned copy", "pinned copy",
    ),
    _Line(
        "uint8 batches of 39 MB to an H200, 8 workers", "device-uint8",
        {"FastLoader, 8 workers": ""}, "limit: pinned copy", "pinned copy",
    ),
    _Line(
        "20,000 images of 3x224x224 in memory, to an H200", "device-large-in-memory",
        {"FastLoader, 0 workers": ""}, "limit: pinned copy", "pinned copy",
    ),
    _Line(
        "50,000 small images in memory, to an H200", "device-small-in-memory",
        {"FastLoader, 0 workers": "", "FastLoader, resident": "on the device "},
        "by hand on the device, epoch at once", "one gather for an epoch, on the device",
    ),
    _Line(
        "ResNet-50 on float32 images, H200", "end-to-end-resnet-float32",
        {"FastLoader, automatic": ""}, "limit: the model alone", "the model alone",
    ),
    _Line(
        "a small CNN on cached OME-Arrow images, its step a CUDA graph, H200",
        "end-to-end-cnn-ome-arrow-graph", {"FastLoader, automatic": ""},
        "limit: the model alone", "the model alone",
    ),
    _Line(
        "float32 batches of 77 MB, one worker, two cores", "transport-large",
        _ONE_WORKER, "limit: copy alone", "one copy",
    ),
    _Line(
        "batches of 33 kB, one worker, two cores", "transport-tiny",
        _ONE_WORKER, "limit: copy alone", "one copy",
    ),
    _Line(
        "batches of 20 small fields, one worker, two cores", "transport-fields",
        _ONE_WORKER, "limit: copy alone", "one copy",
    ),
)  # fmt: skip


def write_readme(reports: Sequence[Report]) -> str:
    """Return README.md with the tables of the newest results.

    Args:
        reports: All that are published.

    Raises:
        LookupError: If a file or row that a table shows is not among them.
    """
    text = README.read_text(encoding="utf-8")
    for name, table in (("demo", _demo_table()), ("speed", _speed_table(reports))):
        begin, end = (
            f"<!-- {name}: written by benchmarks/write_report.py -->",
            f"<!-- end of {name} -->",
        )
        parts = re.split(f"({re.escape(begin)}\n|{re.escape(end)})", text)
        if len(parts) != 5:
            raise LookupError(
                f"README.md must have {begin!r} and {end!r} once, each in a line."
            )
        text = f"{parts[0]}{parts[1]}\n{table}\n{parts[3]}{parts[4]}"
    return text


def _demo_table() -> str:
    newest = max((ROOT / "benchmarks" / "results").glob("*-two-cores/demo.json"))
    document = json.loads(newest.read_text(encoding="utf-8"))
    lines = [
        "| | samples/s | first batch | waiting | peak memory | test accuracy |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for one in document["results"]:
        cells = (
            one["name"],
            f"{one['samples_per_second']:,.0f}",
            f"{one['first_batch_seconds']:.2f} s",
            f"{one['wait_share']:.0%}",
            f"{one['peak_memory_bytes'] / 2**20:,.0f} MiB",
            f"{one['test_accuracy']:.0%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    date, where = document["date"].partition("T")[0], newest.relative_to(ROOT).as_posix()
    lines += [
        "",
        f"These are the numbers of one run on a shared machine, of {date} (`{where}`).",
    ]
    return "\n".join(lines) + "\n"


def _speed_table(reports: Sequence[Report]) -> str:
    newest: dict[str, Report] = {}
    for report in sorted(reports, key=lambda one: one.date):
        newest[report.name] = report
    lines = [
        "| work | stock, at its best | FastLoader | limit of the machine |",
        "| --- | --: | --: | --: |",
    ]
    for line in _LINES:
        ours = ", ".join(
            f"{words}{_times(newest, line, label)}" for label, words in line.ours.items()
        )
        limit = f"{_times(newest, line, line.limit)} ({line.limit_name})"
        lines.append(f"| {line.work} | 1x | {ours} | {limit} |")
    return "\n".join(lines) + "\n"


def _times(newest: Mapping[str, Report], line: _Line, label: str) -> str:
    results: Mapping[str, Any] = (
        newest[line.file].document["results"] if line.file in newest else {}
    )
    if label not in results:
        raise LookupError(
            f"README.md shows {label!r} of {line.file}.json, which has {', '.join(results) or 'no rows'}: "
            "measure it, or change benchmarks/_readme.py."
        )
    return f"{write_times(results[label]['times_baseline']['median'])}x"
