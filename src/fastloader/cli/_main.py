"""Parses the command line, runs one subcommand, and turns errors into exit codes."""

import argparse
import json
import sys
from collections.abc import Sequence

from fastloader.cli import _bench, _completion, _convert, _doctor, _profile, _tune
from fastloader.cli._show import show
from fastloader.errors import FastLoaderError

__all__ = ["FAILED", "INTERRUPTED", "main", "make_parser"]

FAILED = 1
"""Exit code when the subcommand could not do its work, or found something wrong; 2 is argparse's for a wrong usage."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

_COMMANDS = (_doctor, _tune, _bench, _profile, _convert, _completion)
"""Modules with ``add_parser`` and ``run``, in the order of the help."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="fastloader", description="Fast data loading for PyTorch."
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        subparser = command.add_parser(subparsers)
        subparser.add_argument("--json", action="store_true", help="print the result as JSON")
        subparser.set_defaults(run=command.run, parser=parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit code.

    Args:
        arguments: The command line without the program's name; that of the process if None.
    """
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    try:
        report = parsed.run(parsed)
    except FastLoaderError as error:
        print(f"fastloader: {error}", file=sys.stderr)
        if parsed.json:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        return FAILED
    except KeyboardInterrupt:
        print("fastloader: interrupted", file=sys.stderr)
        return INTERRUPTED
    if parsed.json:
        print(json.dumps(report.values))
    else:
        show(report)
    return int(report.exit_code)
