"""Find the published results: of each machine the newest file of a name."""

import ast
import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _pages import read_results

__all__ = ["ROOT", "Report", "by_script", "docstring_of", "find_results"]

ROOT = Path(__file__).parents[1]
_RESULTS = ROOT / "benchmarks" / "results"
_PLOTS = ROOT / "docs" / "pictures" / "benchmarks"

_ORDER = (
    "bench_in_memory", "bench_transport", "bench_decode", "bench_epochs", "bench_startup",
    "bench_held_data", "bench_items", "bench_loaders", "bench_training", "bench_tables",
    "bench_rows", "bench_preload", "bench_image_folders", "bench_cache_memory", "bench_augment",
    "bench_statistics", "bench_device", "bench_end_to_end", "bench_multiscale", "bench_cells",
    "bench_reference_workloads", "bench_thread_workers", "bench_stats_overhead",
)  # fmt: skip


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
        return _PLOTS / f"{self.machine}-{self.name}.svg"

    @property
    def date(self) -> str:
        """On which day it was measured, as ``2026-11-29``."""
        return str(self.document["date"]).partition("T")[0]

    @property
    def commit(self) -> str:
        """Of what code, shortened; code with changes since is told from that of the commit."""
        commit, _, changes = str(self.document.get("commit") or "").partition(" ")
        if not commit:
            return "no commit noted"
        return f"{commit[:7]} {changes}".rstrip()

    @property
    def has_runs(self) -> bool:
        """Whether there is something to draw."""
        return any("summary" in result for result in self.document["results"].values())


def find_results() -> list[Report]:
    """Return the newest file of each name and machine, by script, and the newest first."""
    newest: dict[tuple[str, str], Report] = {}
    for path in sorted(_RESULTS.glob("*/*.json")):
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        document["results"] = read_results(document)
        script = re.search(r"bench_\w+", document.get("command", ""))
        if script is None or not document["results"] or not docstring_of(script[0]):
            continue  # of another program, such as the demo
        machine = re.sub(r"^\d{4}-\d\d-\d\d-", "", path.parent.name)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        report = Report(path.stem, machine, path, script[0], document, digest)
        newest[path.stem, machine] = report
    places = {script: place for place, script in enumerate(_ORDER)}
    in_order = sorted(newest.values(), key=lambda one: (one.name, one.machine))
    in_order.sort(key=lambda one: one.date, reverse=True)
    return sorted(in_order, key=lambda one: (places.get(one.script, len(places)), one.script))


def by_script(reports: Sequence[Report]) -> Mapping[str, list[Report]]:
    """Return the reports of each script, in their order."""
    found: dict[str, list[Report]] = {}
    for report in reports:
        found.setdefault(report.script, []).append(report)
    return found


def docstring_of(script: str) -> str:
    """Return what a script says of itself; empty where it is gone.

    Args:
        script: Name of its module.
    """
    path = ROOT / "benchmarks" / f"{script}.py"
    if not path.exists():
        return ""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return inspect.cleandoc(ast.get_docstring(tree) or "")
