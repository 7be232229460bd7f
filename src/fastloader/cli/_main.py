"""Parses the command line, runs one subcommand, and turns errors into exit codes."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from importlib.metadata import version

from fastloader.cli import _bench, _cache, _completion, _convert, _doctor, _profile, _tune
from fastloader.cli._show import show
from fastloader.errors import FastLoaderError

__all__ = ["CUT_OFF", "FAILED", "INTERRUPTED", "main", "make_parser"]

FAILED = 1
"""Exit code when the subcommand could not do its work, or found something wrong; 2 is argparse's for a wrong usage."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
CUT_OFF = 141
"""Exit code where nobody reads the output any more, as of a program that ends by SIGPIPE."""

_COMMANDS = {
    "doctor": _doctor,
    "tune": _tune,
    "bench": _bench,
    "profile": _profile,
    "convert": _convert,
    "cache": _cache,
    "completion": _completion,
}
"""Modules with `HELP`, `DESCRIPTION`, `add_arguments` and `run`, in the order of the help."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="fastloader", description="Fast data loading for PyTorch."
    )
    parser.add_argument("--version", action="version", version=version("fastloader"))
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=command.HELP, description=command.DESCRIPTION
        )
        command.add_arguments(subparser)
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
        with _prints_to_errors() if parsed.json else nullcontext():
            report = parsed.run(parsed)
    except FastLoaderError as error:
        print(f"fastloader: {error}", file=sys.stderr)
        return _write(partial(_print_error, error), FAILED) if parsed.json else FAILED
    except KeyboardInterrupt:
        print("fastloader: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # of the user's code, which its traceback tells best
        if parsed.json:
            _write(partial(_print_error, error), FAILED)
        raise
    if parsed.json:
        return _write(lambda: print(json.dumps(report.values)), report.exit_code)
    return _write(partial(show, report), report.exit_code)


def _write(write: Callable[[], None], exit_code: int) -> int:
    """Print a result, and return the exit code: another one if it cannot be written.

    Args:
        write: Prints it.
        exit_code: Of a result that is written.
    """
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        # The interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return CUT_OFF  # whoever reads has enough
        print(f"fastloader: the result cannot be written: {error}", file=sys.stderr)
        return FAILED
    return exit_code


@contextmanager
def _prints_to_errors() -> Iterator[None]:
    """Let standard output be for the result alone: what code of the user prints goes to the errors.

    That of workers, which inherit the descriptor, too.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _print_error(error: Exception) -> None:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
