"""``fastloader tune``: the fastest settings for a dataset, found by measuring."""

import argparse

from fastloader.cli._numbers import bound, count, duration
from fastloader.cli._report import Report
from fastloader.cli._target import add_target, load_step, load_target

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "find the fastest settings for a dataset by measuring"
DESCRIPTION = (
    "Find the fastest settings for a dataset or loader by measuring, and store them for "
    'FastLoader(..., settings="tuned").'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_target(parser)
    parser.add_argument(
        "--batch-size", type=count, metavar="N", help="of a dataset; 1 when left out"
    )
    parser.add_argument(
        "--budget", type=duration, default=30.0, metavar="SECONDS", help="default: 30"
    )
    parser.add_argument("--max-workers", type=bound, metavar="N", help="the most to try")
    parser.add_argument(
        "--any-order",
        action="store_true",
        help="batches may come in any order if that is faster",
    )
    parser.add_argument("--no-save", action="store_true", help="do not store the result")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="where to store the result")
    parser.add_argument("--plot", metavar="FILE.png", help="draw what was measured")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(arguments: argparse.Namespace) -> Report:
    """Tune, and tell what was found."""
    from fastloader.measuring import check_plot, plot_rates  # noqa: PLC0415 - slow to import
    from fastloader.tuning import measure_settings  # noqa: PLC0415

    if arguments.plot is not None:
        check_plot(arguments.plot)
    options = {} if arguments.batch_size is None else {"batch_size": arguments.batch_size}
    report = measure_settings(
        load_target(arguments.target),
        step=load_step(arguments.step),
        budget_seconds=arguments.budget,
        max_workers=arguments.max_workers,
        any_order=arguments.any_order,
        save=not arguments.no_save,
        cache_dir=arguments.cache_dir,
        progress=False if arguments.quiet else "auto",
        **options,
    )
    if arguments.plot is not None:
        rates = {row.candidate.label(): row.rates for row in report.rows if row.rates}
        plot_rates(rates, arguments.plot)
    return Report(str(report), report.as_dict(), parts=(report.cells(), report.verdict()))
