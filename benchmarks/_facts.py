"""Where and how a benchmark ran: machine, versions, date, command and commit."""

import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

__all__ = ["copy_bytes_per_second", "run_facts", "usable_cpus"]

COMMIT_VARIABLE = "FASTLOADER_BENCHMARK_COMMIT"
"""Names the commit where the code was copied without its history."""

_PACKAGES = ("fastloader", "torch", "numpy", "pyarrow", "zarr", "tifffile")
"""The others are named where they are installed."""
_EXTRA_PACKAGES = (
    "datasets",
    "duckdb",
    "grain",
    "imagecodecs",
    "monai",
    "nvidia-dali-cuda130",
    "pylance",
    "spdl",
    "timm",
    "torchdata",
    "vortex-data",
)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def copy_bytes_per_second() -> float:
    """Return how fast one thread copies a block that fits the caches: the best of many."""
    # By NumPy: torch would divide the work over threads and, where other processes keep the
    # cores busy, wait for them.
    source = np.ones(1 << 20, np.uint8)
    target = np.empty_like(source)
    best_seconds = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        np.copyto(target, source)
        best_seconds = min(best_seconds, time.perf_counter() - start)
    return source.nbytes / best_seconds


def run_facts() -> dict[str, Any]:
    """Return everything that a reader needs to judge or repeat a run, ready for JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "commit": _commit(),
        "machine": _machine(),
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _command() -> str:
    script = Path(sys.argv[0]).resolve()
    name = f"{script.parent.name}/{script.name}" if script.suffix == ".py" else script.name
    # Folders of this machine mean nothing on another one.
    arguments = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return " ".join(["python", name, *arguments])


def _commit() -> str | None:
    if given := os.environ.get(COMMIT_VARIABLE):
        return given
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit} with local changes" if changed.strip() else commit


def _machine() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_name(),
        "usable_cpus": usable_cpus(),
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": round(psutil.getloadavg()[0], 2),
    }
    if torch.cuda.is_available():
        facts["accelerators"] = [
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ]
        facts["cuda"] = torch.version.cuda
    return facts


def _cpu_name() -> str:
    try:
        found = re.search(
            r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8")
        )
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in (*_PACKAGES, *_EXTRA_PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if package in _PACKAGES:
                found[package] = None
    return found
