"""``fastloader doctor``: what this machine lets a loader do, and what will bite."""

import argparse
import dataclasses

from fastloader.cli._report import Report

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "tell what this machine lets a loader do, and which of its limits will bite"
DESCRIPTION = (
    "Look at processors, memory, limits, start method, threads, accelerator and optional "
    "packages. Exit code 1 if something will fail or be slow because of them."
)


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: there are no options."""


def run(_arguments: argparse.Namespace) -> Report:
    """Look, and tell what was found."""
    from fastloader.testing import check_machine  # noqa: PLC0415 - help needs no torch

    report = check_machine()
    findings = [dataclasses.asdict(finding) for finding in report.findings]
    table = [("", "looked at", "found")]
    for one in report.findings:
        table.append((one.outcome, one.name, one.detail))
        if one.remedy:
            table.append(("", "", f"-> {one.remedy}"))
    return Report(
        str(report),
        {"ok": report.ok, "findings": findings},
        exit_code=0 if report.ok else 1,
        parts=(table,),
    )
