"""``fastloader convert``: images from any source to an OME-Arrow table."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from fastloader.cli._report import Report
from fastloader.errors import SettingsError

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "write images from any source as an OME-Arrow table"
DESCRIPTION = (
    "Write images, with the columns beside them, as an OME-Arrow table. The ending of "
    "DESTINATION tells the format: .parquet, .lance, .duckdb, .vortex or .arrow. Pixels "
    "keep their type and every bit."
)

_TRUTHS = {"true": True, "false": False}
_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "join_files": ("true or false", lambda text: _TRUTHS[text.lower()]),
    "level": ("a whole number", int),
    "num_cores": ("a whole number", int),
    "pixel_size": ("a number", float),
    "series": ("a whole number", int),
    "version": ("a number or a name", lambda text: int(text) if text.isdecimal() else text),
}
"""Options of formats that are no text, what they are, and how to make them of one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("source", nargs="+", help="file or folder of images, or several files")
    parser.add_argument("destination", help="table to write")
    parser.add_argument("--format", help="what to write; by the ending when left out")
    parser.add_argument("--source-format", help="what SOURCE is; found when left out")
    parser.add_argument("--image-column", help="column of the images, if there are several")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the source's format; may be given several times",
    )
    parser.add_argument(
        "--compression",
        choices=("auto", "zstd", "lz4", "none"),
        default="auto",
        help="default: auto, zstd in Parquet and Arrow files, none in Lance and DuckDB",
    )
    parser.add_argument(
        "--rows-per-group",
        type=int,
        metavar="N",
        help="images stored together; 16 to 64, of compressed Arrow files 4 MiB",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace DESTINATION")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(arguments: argparse.Namespace) -> Report:
    """Convert, and tell what was written.

    Raises:
        SettingsError: If an option is not of the form ``NAME=VALUE``.
    """
    from fastloader.writing import convert  # noqa: PLC0415 - help needs no Arrow

    options = {}
    for option in arguments.option:
        name, sign, value = option.partition("=")
        if not sign:
            raise SettingsError(f"--option {option}: expected NAME=VALUE.")
        options[name] = _value(name, value)
    single = len(arguments.source) == 1
    start = time.perf_counter()
    written = convert(
        arguments.source[0] if single else arguments.source,
        arguments.destination,
        image_column=arguments.image_column,
        source_format=arguments.source_format,
        source_options=options,
        format=arguments.format,
        compression=None if arguments.compression == "none" else arguments.compression,
        rows_per_group=arguments.rows_per_group,
        overwrite=arguments.overwrite,
        progress=False if arguments.quiet else "auto",
    )
    seconds = time.perf_counter() - start
    return Report(
        f"{written.path}: {written.num_images} images, {written.num_bytes / 1e6:.1f} MB, "
        f"{seconds:.1f} s",
        {
            "path": str(written.path),
            "num_images": written.num_images,
            "num_bytes": written.num_bytes,
            "seconds": round(seconds, 3),
        },
    )


def _value(name: str, text: str) -> Any:
    """Return the value of an option of a source's format, in the type that it has.

    Raises:
        SettingsError: If it is of another type.
    """
    expected, convert_text = _KINDS.get(name, ("text", str))
    try:
        return convert_text(text)
    except (KeyError, ValueError):
        raise SettingsError(f"--option {name}={text}: expected {expected}.") from None
