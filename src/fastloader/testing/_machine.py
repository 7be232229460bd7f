"""Check what a machine lets a loader do, and which of its limits will bite."""

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fastloader._extension_modules import (
    KERNELS,
    RAW_FILES,
    ROW_TEAM,
    TWISTERS,
    extension_module,
    import_error,
)
from fastloader.cache._disk_file import default_cache_folder
from fastloader.machine._machine import (
    Machine,
    read_machine,
    read_shared_bytes,
    read_total_bytes,
)

__all__ = ["MachineFinding", "MachineReport", "check_machine"]

_FEW_FILES = 512
_LITTLE_SHARED_BYTES = 512 << 20
_LITTLE_BYTES = 2 << 30

_EXTRAS = {
    "imagecodecs": "tiff",
    "lance": "lance",
    "duckdb": "duckdb",
    "vortex": "vortex",
    "fsspec": "remote",
    "matplotlib": "plot",
    "rich": "cli",
    "pynvml": "gpu",
}
"""Module to look for, and the extra that installs it."""


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """One thing that was looked at."""

    name: str
    outcome: Literal["ok", "note", "bites"]
    """``"bites"``: something will fail or be slow because of it."""
    detail: str
    """What was found."""
    remedy: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """All findings about this process and its machine; print it."""

    findings: tuple[MachineFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing will bite."""
        return all(finding.outcome != "bites" for finding in self.findings)

    def __str__(self) -> str:
        """Return a table for people."""
        width = max(len(finding.name) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.outcome:5}  {finding.name:{width}}  {finding.detail}")
            if finding.remedy:
                lines.append(f"{'':5}  {'':{width}}  -> {finding.remedy}")
        return "\n".join(lines)


def check_machine() -> MachineReport:
    """Look at processors, memory, limits, start method, threads, accelerator and extras.

    Nothing is started, and no accelerator is initialised.

    Examples:
        >>> report = check_machine()
        >>> {finding.outcome for finding in report.findings} <= {"ok", "note", "bites"}
        True
    """
    machine = read_machine()
    return MachineReport((
        _check_cpus(machine),
        _check_threads(machine.rank_cpus, torch.get_num_threads(), os.environ),
        _check_memory(machine.available_bytes, read_total_bytes()),
        _check_shared_memory(machine.has_memory_files, read_shared_bytes()),
        _check_open_files(machine.max_open_files),
        _check_start_method(machine),
        _check_accelerator(machine.accelerator, torch.version.cuda, _has_nvidia_driver()),
        _check_cache_folder(default_cache_folder()),
        *_check_environment(os.environ),
        _check_kernels(KERNELS, RAW_FILES, ROW_TEAM, TWISTERS),
        *_check_extras(),
    ))


def _check_cpus(machine: Machine) -> MachineFinding:
    detail = f"{machine.granted_cpus} usable"
    if machine.local_world_size > 1:
        detail += f", {machine.rank_cpus} for each of {machine.local_world_size} local ranks"
    if machine.granted_cpus >= machine.affinity_cpus:
        return MachineFinding("CPUs", "ok", detail)
    return MachineFinding(
        "CPUs",
        "note",
        f"{detail} of {machine.affinity_cpus}, by a control group or scheduler",
        "leave num_workers out: FastLoader counts those that are usable",
    )


def _check_threads(
    rank_cpus: int, num_threads: int, environment: Mapping[str, str]
) -> MachineFinding:
    given = environment.get("OMP_NUM_THREADS")
    detail = f"torch computes on {num_threads}"
    detail += ", OMP_NUM_THREADS is not set" if given is None else f", OMP_NUM_THREADS={given}"
    if num_threads <= rank_cpus:
        return MachineFinding("threads", "ok", detail)
    return MachineFinding(
        "threads",
        "bites",
        f"{detail}: more than the {rank_cpus} CPUs of this process, so they wait for each other",
        f"export OMP_NUM_THREADS={rank_cpus}, or torch.set_num_threads({rank_cpus})",
    )


def _check_memory(available_bytes: int, total_bytes: int) -> MachineFinding:
    detail = f"{_gib(available_bytes)} available of {_gib(total_bytes)}"
    if available_bytes >= _LITTLE_BYTES:
        return MachineFinding("memory", "ok", detail)
    return MachineFinding(
        "memory",
        "bites",
        f"{detail}: little for workers, each of which takes up to half a GiB with torch",
        "give the control group more memory, or use few workers or threads (workers='threads')",
    )


def _check_shared_memory(has_memory_files: bool, free_bytes: int | None) -> MachineFinding:
    if not has_memory_files:
        return MachineFinding(
            "shared memory",
            "bites",
            "this system has no anonymous memory files, so batches travel in torch's way",
            "run on Linux for the faster transport",
        )
    if free_bytes is None or free_bytes >= _LITTLE_SHARED_BYTES:
        return MachineFinding("shared memory", "ok", "anonymous memory files")
    return MachineFinding(
        "shared memory",
        "note",
        f"{_gib(free_bytes)} free in /dev/shm, which FastLoader does not need, but stock loaders "
        "and transport='torch' do: their workers die of bus errors",
        "start the container with --shm-size=8g or --ipc=host",
    )


def _check_open_files(most: int | None) -> MachineFinding:
    if most is None or most >= _FEW_FILES:
        return MachineFinding("open files", "ok", "no limit" if most is None else f"{most}")
    return MachineFinding(
        "open files",
        "bites",
        f"at most {most}: workers, memory files and open data sets may need more",
        "ulimit -n 4096",
    )


def _check_start_method(machine: Machine) -> MachineFinding:
    name, method = "start method", machine.start_method
    if machine.is_daemonic or machine.is_worker:
        return MachineFinding(
            name,
            "bites",
            "this process may not start others, so there are no worker processes",
            "make loaders in the main process, or use workers='threads'",
        )
    if not machine.is_main_importable and method != "fork":
        return MachineFinding(
            name,
            "bites",
            f"{method}, which imports the main script again, and that has no guard",
            "put what it runs under: if __name__ == '__main__':",
        )
    if machine.fork_hazard is not None:
        return MachineFinding(
            name, "note", f"{method}, but {machine.fork_hazard}, which no forked child can use",
            "leave multiprocessing_context out: FastLoader takes forkserver then",
        )  # fmt: skip
    return MachineFinding(name, "ok", method)


def _check_accelerator(
    accelerator: str | None, cuda: str | None, has_driver: bool
) -> MachineFinding:
    name, version = "accelerator", f"torch {torch.__version__}"
    if accelerator is not None:
        detail = f"{torch.accelerator.device_count()} x {accelerator}, {version}"
        return MachineFinding(name, "ok", detail)
    if not has_driver:
        return MachineFinding(name, "ok", f"none, {version}")
    reason = "it is built without CUDA" if cuda is None else f"it is built for CUDA {cuda}"
    return MachineFinding(
        name,
        "bites",
        f"there is a driver of NVIDIA, but {version} finds no device ({reason})",
        "install a torch for the driver's CUDA, and look at CUDA_VISIBLE_DEVICES",
    )


def _check_cache_folder(folder: Path) -> MachineFinding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK):
        return MachineFinding(
            "cache folder",
            "bites",
            f"{folder} cannot be written to: no decoded images on disk, no stored settings",
            "set FASTLOADER_CACHE_DIR to a folder on a local disk",
        )
    free = shutil.disk_usage(there).free
    return MachineFinding("cache folder", "ok", f"{folder}, {_gib(free)} free")


def _check_environment(environment: Mapping[str, str]) -> Iterator[MachineFinding]:
    value = environment.get("FASTLOADER_NUM_WORKERS")
    if value:
        yield MachineFinding(
            "environment",
            "note" if value.isdecimal() else "bites",
            f"FASTLOADER_NUM_WORKERS={value} replaces all automatic numbers of workers",
            "unset FASTLOADER_NUM_WORKERS, unless that is meant",
        )


def _check_kernels(*names: str) -> MachineFinding:
    slower = (
        "transforms, large batches and small files are left to NumPy, torch and Python: same "
        "results, some of them at a third of the rate"
    )
    errors = [error for error in map(import_error, names) if error is not None]
    if errors:
        return MachineFinding(
            "kernels",
            "bites",
            f"compiled, but cannot be imported ({'; '.join(map(str, errors))}): {slower}",
            "install again on this system: pip install --force-reinstall --no-deps --no-cache-dir fastloader",
        )
    if None not in map(extension_module, names):
        return MachineFinding(
            "kernels",
            "ok",
            "transforms of batches, copies of large ones and reads of small files are compiled",
        )
    return MachineFinding(
        "kernels",
        "note",
        slower,
        "install again where there is a C compiler and Python.h, and leave FASTLOADER_KERNELS unset",
    )


def _check_extras() -> Iterator[MachineFinding]:
    missing = [
        extra for module, extra in _EXTRAS.items() if importlib.util.find_spec(module) is None
    ]
    if not missing:
        yield MachineFinding("extras", "ok", "all installed")
        return
    names = ",".join(sorted(missing))
    yield MachineFinding(
        "extras",
        "note",
        f"not installed: {names.replace(',', ', ')}",
        f'pip install "fastloader[{names}]", if you need them',
    )


def _has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
