"""The images of the benchmarks: where they lie, and whether they are whole.

`make_data.py` writes them, to a folder outside the repository; a benchmark only asks for them.
Beside the images of each format stands a manifest with the size and checksum of each file, written
last: what is missing, damaged or half written has none that fits, and is made again.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _measurement import BenchmarkError

__all__ = [
    "CONTENTS", "FORMATS", "Images", "add_arguments", "find_chosen", "find_images",
    "find_problem", "read_reason", "write_manifest",
]  # fmt: skip

FORMATS: Mapping[str, str] = {
    "Parquet": ".parquet",
    "Lance": ".lance",
    "DuckDB": ".duckdb",
    "Vortex": ".vortex",
    "Arrow IPC": ".arrow",
    "TIFF": "-tiff",
    "OME-Zarr": "-ome-zarr",
}
"""Every format, and how the name of a file or folder of it ends."""

CONTENTS: Mapping[str, int] = {"generated": 512, "cells": 336}
"""Kinds of images, and how many there are."""

_SMOKE_IMAGES = 32

_VERSION = 1
"""Counts up when `make_data.py` makes other images."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images of one content in one format."""

    content: str
    format_name: str
    path: Path
    num_images: int
    reason: str = ""
    """Why they cannot be had here; empty if they can."""

    @property
    def image_column(self) -> str:
        """Name of the column of images, in a table."""
        return "image" if self.content == "cells" else "ome_arrow"

    @property
    def label_column(self) -> str:
        """Name of the column of labels, as `OMEArrowDataset` sees it."""
        return "label" if FORMATS[self.format_name].startswith(".") else "folder"

    @classmethod
    def of(cls, content: str, format_name: str, *, smoke: bool = False) -> "Images":
        """Return where images are or will be."""
        num_images = _SMOKE_IMAGES if smoke else CONTENTS[content]
        name = f"{content}-{num_images}{FORMATS[format_name]}"
        return cls(content, format_name, _folder() / name, num_images)


def _folder() -> Path:
    chosen = os.environ.get("FASTLOADER_BENCHMARK_DATA")
    if chosen:
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "fastloader-benchmarks"


def _manifest_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.manifest.json")


def _files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(path: Path, reason: str = "") -> None:
    """Write down what was made, or why it was not."""
    files = {
        str(one.relative_to(path.parent)): [one.stat().st_size, _checksum(one)]
        for one in _files_of(path)
    }
    manifest = _manifest_of(path)
    partial = manifest.with_name(f"{manifest.name}.{os.getpid()}")
    partial.write_text(
        json.dumps({"version": _VERSION, "reason": reason, "files": files}, indent=1), "utf-8"
    )
    partial.replace(manifest)


def _read_manifest(path: Path) -> Any:
    try:
        return json.loads(_manifest_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_reason(path: Path) -> str:
    """Return why images could not be made; empty if they could."""
    manifest = _read_manifest(path)
    return str(manifest["reason"]) if manifest else ""


def find_problem(path: Path) -> str:
    """Return what is wrong with images that were made; empty if nothing is."""
    manifest = _read_manifest(path)
    if manifest is None:
        return "there is no manifest"
    if manifest.get("version") != _VERSION:
        return "they are those of another version of the benchmarks"
    if manifest["reason"]:
        return "they could not be made when it was tried last"
    there = {str(one.relative_to(path.parent)): one for one in _files_of(path)}
    if there.keys() != manifest["files"].keys():
        return "files are missing, or are there that should not be"
    for name, (size, checksum) in manifest["files"].items():
        if there[name].stat().st_size != size or _checksum(there[name]) != checksum:
            return f"{name} is damaged"
    return ""


def find_images(
    contents: Iterable[str], formats: Iterable[str], *, smoke: bool
) -> list[Images]:
    """Return images that are whole, or the reason why they cannot be had.

    What has to be made is made in a process of its own, so that the benchmark's does not keep
    threads and memory of the libraries that write.

    Raises:
        BenchmarkError: If making them failed.
    """
    wanted = [Images.of(one, form, smoke=smoke) for one in contents for form in formats]
    missing = [one for one in wanted if find_problem(one.path)]
    if missing:
        script = Path(__file__).with_name("make_data.py")
        command = [sys.executable, str(script), *(["--smoke"] if smoke else [])]
        command += ["--contents", *dict.fromkeys(one.content for one in missing)]
        command += ["--formats", *dict.fromkeys(one.format_name for one in missing)]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
            raise BenchmarkError("the images could not be made; see above.")
    return [
        Images(one.content, one.format_name, one.path, one.num_images, read_reason(one.path))
        for one in wanted
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments by which a benchmark is told which images to read."""
    parser.add_argument("--contents", nargs="+", choices=CONTENTS, default=list(CONTENTS))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))


def find_chosen(
    arguments: argparse.Namespace, smoke_formats: Iterable[str] = FORMATS
) -> list[Images]:
    """Return the images that were asked for; in a smoke run few, and only generated ones."""
    if arguments.smoke:
        formats = [form for form in arguments.formats if form in smoke_formats]
        return find_images(arguments.contents[:1], formats, smoke=True)
    return find_images(arguments.contents, arguments.formats, smoke=False)
