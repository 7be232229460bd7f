"""``fastloader profile``: what makes a loader slow, and what to write against it."""

import argparse
from typing import Any

from fastloader.cli._numbers import count, duration
from fastloader.cli._report import Report
from fastloader.cli._target import add_target, load_step, load_target

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "say what makes a loader slow, and what to write against it"
DESCRIPTION = (
    "Measure a loader, or a FastLoader over a dataset, and say what makes it slow. Exit "
    "code 1 if something does."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_target(parser)
    parser.add_argument("--batch-size", type=count, metavar="N", default=1, help="of a dataset")
    parser.add_argument(
        "--seconds", type=duration, default=5.0, help="for all of it; default: 5"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw where the time goes")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(arguments: argparse.Namespace) -> Report:
    """Look, and tell what was found."""
    from fastloader import FastLoader, diagnose  # noqa: PLC0415 - help needs no torch
    from fastloader.measuring import (  # noqa: PLC0415
        BenchmarkResult,
        check_plot,
        is_loader,
        plot_diagnosis,
    )

    if arguments.plot is not None:
        check_plot(arguments.plot)
    target = load_target(arguments.target)
    loader: Any = target if is_loader(target) else FastLoader(target, arguments.batch_size)
    diagnosis = diagnose(
        loader,
        step=load_step(arguments.step),
        seconds=arguments.seconds,
        progress=False if arguments.quiet else "auto",
    )
    if arguments.plot is not None:
        plot_diagnosis(diagnosis, arguments.plot)
    table = BenchmarkResult({arguments.target: (diagnosis.measurement,)})
    return Report(
        f"{table}\n\n{diagnosis}",
        diagnosis.as_dict(),
        exit_code=0 if diagnosis.is_sound else 1,
        parts=(table.cells(), str(diagnosis)),
    )
