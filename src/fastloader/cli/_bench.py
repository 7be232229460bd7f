"""``fastloader bench``: settings of one dataset compared, as a table and a picture."""

import argparse
import inspect
from typing import Any

from fastloader.cli._numbers import count, duration
from fastloader.cli._report import Report
from fastloader.cli._target import add_target, load_step, load_target
from fastloader.errors import SettingsError

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "parse_settings", "run"]

HELP = "compare settings for a dataset, or measure a loader"
DESCRIPTION = (
    "Measure loaders over a dataset in turns: those of --set, or FastLoader's own choice "
    "beside no workers and a stock DataLoader. A loader is measured as it is."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_target(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE[,...]",
        help="settings to compare, as num_workers=2,workers=threads; may be given several times",
    )
    parser.add_argument("--batch-size", type=count, metavar="N", default=1, help="of a dataset")
    parser.add_argument(
        "--seconds", type=duration, default=5.0, help="for each setting, in all; default: 5"
    )
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="default: 3")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the rates")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(arguments: argparse.Namespace) -> Report:
    """Measure, and tell what came out.

    Raises:
        SettingsError: If there are settings beside a loader.
    """
    from torch.utils.data import DataLoader  # noqa: PLC0415 - help needs no torch

    from fastloader.measuring import check_plot, is_loader  # noqa: PLC0415
    from fastloader.tuning import compare_settings, plot_comparison  # noqa: PLC0415

    if arguments.plot is not None:
        check_plot(arguments.plot)
    target = load_target(arguments.target)
    settings: dict[str, Any] = {text: parse_settings(text) for text in arguments.set}
    options = {"batch_size": arguments.batch_size}
    if is_loader(target):
        if settings:
            raise SettingsError(f"{arguments.target} is a loader: --set needs a dataset.")
        settings, options = {arguments.target: target}, {}
    elif settings:
        for text, given in settings.items():
            _try_out(text, target, {**options, **given})
    else:
        stock: Any = DataLoader(target, arguments.batch_size)
        settings = {
            "automatic": {},
            "no workers": {"num_workers": 0},
            "stock DataLoader": stock,
        }
    result = compare_settings(
        target,
        settings,
        step=load_step(arguments.step),
        seconds=arguments.seconds,
        num_rounds=arguments.rounds,
        progress=False if arguments.quiet else "auto",
        **options,
    )
    if arguments.plot is not None:
        plot_comparison(result, arguments.plot)
    return Report(str(result), {"loaders": result.as_dict()}, parts=(result.cells(),))


def _try_out(text: str, target: Any, options: dict[str, Any]) -> None:
    """Make a loader with settings of the command line, before anything is measured.

    Raises:
        SettingsError: If they are refused, also by torch.
    """
    from fastloader import FastLoader  # noqa: PLC0415 - help needs no torch

    try:
        FastLoader(target, **options)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"--set {text}: {error}") from error


def parse_settings(text: str) -> dict[str, Any]:
    """Return options of a loader.

    Args:
        text: As ``num_workers=2,workers=threads``.

    Raises:
        SettingsError: If it is of another form, or no option has the name.
    """
    from fastloader import FastLoader  # noqa: PLC0415 - help needs no torch

    options = {}
    known = inspect.signature(FastLoader).parameters
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        if not (name and sign):
            raise SettingsError(f"--set {text}: expected NAME=VALUE, separated by commas.")
        if name not in known:
            raise SettingsError(f"--set {text}: FastLoader has no option {name}.")
        words = {"true": True, "false": False, "none": None}
        options[name] = int(value) if value.isdecimal() else words.get(value.lower(), value)
    return options
