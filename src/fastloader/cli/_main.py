"""Parses the command line, runs one subcommand, and turns errors into exit codes."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from fastloader.cli import _bench, _completion, _convert, _doctor, _profile, _tune
from fastloader.cli._show import show
from fastloader.errors import FastLoaderError

__all__ = ["CUT_OFF", "FAILED", "INTERRUPTED", "main", "make_parser"]

FAILED = 1
"""Exit code when the subcommand could not do its work, or found something wrong; 2 is argparse's for a wrong usage."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
CUT_OFF = 141
"""Exit code where nobody reads the output any more, as of a program that ends by SIGPIPE."""

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
            _print_error(error)
        return FAILED
    except KeyboardInterrupt:
        print("fastloader: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # of the user's code, which its traceback tells best
        if parsed.json:
            _print_error(error)
        raise
    try:
        if parsed.json:
            print(json.dumps(report.values))
        else:
            show(report)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has enough. The interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CUT_OFF
    return int(report.exit_code)


def _print_error(error: Exception) -> None:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
