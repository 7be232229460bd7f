"""What this process may use: CPUs, memory, accelerator, and where it stands among others."""

import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
import torch
from torch.utils.data import get_worker_info

if sys.platform != "win32":
    import resource

__all__ = [
    "Machine",
    "detect_fork_hazard",
    "read_available_bytes",
    "read_machine",
    "read_shared_bytes",
    "read_total_bytes",
]

_LOCAL_WORLD_SIZE = (
    "LOCAL_WORLD_SIZE",  # torchrun, Accelerate, Lightning's launchers
    "OMPI_COMM_WORLD_LOCAL_SIZE",  # Open MPI
    "MPI_LOCALNRANKS",  # Intel MPI, MPICH
    "MV2_COMM_WORLD_LOCAL_SIZE",  # MVAPICH
    "PALS_LOCAL_SIZE",  # Cray PALS
    "SLURM_NTASKS_PER_NODE",
)

# Threads that are idle at a fork or know how to live through one. Threads of OpenMP, BLAS
# and torch's own pool bear the name of the process, so that they are not counted either.
_HARMLESS_THREADS = (
    "QueueFeederThread",  # of multiprocessing, and so of stock loaders
    "fastloader",
    "tqdm_monitor",
    "pydevd",
    "pt_",  # torch's autograd and NCCL watchdogs
    "cuda",
    "jemalloc_bg_thd",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the process and its machine that settings depend on."""

    affinity_cpus: int
    """CPUs that this process may run on, at least 1."""
    granted_cpus: int
    """CPUs' worth of time that it gets: also by cgroup quota and scheduler, at least 1."""
    rank_cpus: int
    """Its fair share of them, beside the other ranks, at least 1."""
    local_world_size: int
    """Training processes on this machine, at least 1."""
    available_bytes: int
    """Memory that can still be had, bounded by the cgroup's limit."""
    accelerator: str | None
    """Type of the accelerator that is present, such as ``cuda`` or ``mps``."""
    is_daemonic: bool
    """Whether the process may not have children."""
    is_worker: bool
    """Whether this is a worker of a loader."""
    start_method: str
    """How `multiprocessing` starts processes unless told otherwise."""
    start_methods: tuple[str, ...]
    """How it could start them."""
    num_threads: int
    """Other threads alive that a forked child would miss."""
    is_main_importable: bool
    """Whether forkserver and spawn can import the main script without running it."""
    has_memory_files: bool
    """Whether processes can share memory without a name in a file system."""
    fork_hazard: str | None = None
    """What is in use whose threads no forked child has, as the beginning of a sentence."""
    max_open_files: int | None = None
    """Descriptors that the process may have, None without a limit."""


def read_machine(
    root: Path = Path("/"), environment: Mapping[str, str] | None = None
) -> Machine:
    """Read the facts; nothing is started, and no accelerator is initialised.

    Args:
        root: Where the file systems ``proc`` and ``sys`` are mounted.
        environment: Environment variables, those of this process by default.
    """
    environment = os.environ if environment is None else environment
    affinity_cpus = _count_affinity_cpus()
    task_cpus = _first_number(environment, ("SLURM_CPUS_PER_TASK",), default=affinity_cpus)
    granted_cpus = max(1, min(affinity_cpus, task_cpus, _read_quota_cpus(root)))
    local_world_size = max(1, _first_number(environment, _LOCAL_WORLD_SIZE, default=1))
    process = multiprocessing.current_process()
    # get_start_method() would fix the global method; its first use belongs to the user.
    methods = tuple(multiprocessing.get_all_start_methods())
    method = multiprocessing.get_start_method(allow_none=True)
    return Machine(
        affinity_cpus=affinity_cpus,
        granted_cpus=granted_cpus,
        rank_cpus=_share_cpus(granted_cpus, local_world_size, environment),
        local_world_size=local_world_size,
        available_bytes=read_available_bytes(root),
        accelerator=_detect_accelerator(),
        is_daemonic=process.daemon,
        is_worker=get_worker_info() is not None,
        start_method=method or methods[0],
        start_methods=methods,
        num_threads=_count_threads(root),
        is_main_importable=_is_main_importable(),
        has_memory_files=hasattr(os, "memfd_create"),
        fork_hazard=detect_fork_hazard(),
        max_open_files=_read_max_open_files(),
    )


def detect_fork_hazard() -> str | None:
    """Return what a forked child of this process would wait for for ever, if it used it.

    The threads of zarrs, a codec pipeline of zarr in Rust, bear the name of the process and are
    not told from harmless ones. Nothing is imported to find out.
    """
    zarr = sys.modules.get("zarr")
    if zarr is None or "zarrs" not in sys.modules:
        return None
    pipeline = str(zarr.config.get("codec_pipeline.path", ""))
    return "zarr decodes by zarrs" if pipeline.startswith("zarrs.") else None


def _read_max_open_files() -> int | None:
    if sys.platform == "win32":
        return None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if most == resource.RLIM_INFINITY else most


def _first_number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return default


def _share_cpus(
    granted_cpus: int, local_world_size: int, environment: Mapping[str, str]
) -> int:
    """Divide the CPUs among the ranks, unless the scheduler has done so already."""
    num_tasks = _first_number(environment, ("SLURM_NTASKS_PER_NODE",), default=1)
    if "SLURM_CPUS_PER_TASK" in environment and num_tasks == local_world_size:
        return granted_cpus  # each rank is a task of its own
    return max(1, granted_cpus // local_world_size)


def _count_affinity_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # noqa: TID251 - the module that may


def _read_quota_cpus(root: Path) -> int:
    quotas = [_read_cpu_quota(group) for group in _control_groups(root, "cpu")]
    return int(min((quota for quota in quotas if quota is not None), default=sys.maxsize))


def _read_cpu_quota(group: Path) -> float | None:
    """Return the CPUs' worth of time a control group gets, None without a limit."""
    words = _read_text(group / "cpu.max").split()  # version 2: "max 100000" or "50000 100000"
    if not words:
        quota = _read_text(group / "cpu.cfs_quota_us").strip()  # version 1: -1 is no limit
        words = [quota, _read_text(group / "cpu.cfs_period_us").strip()]
    if all(word.isdecimal() and int(word) > 0 for word in words):
        return int(words[0]) / int(words[1])
    return None


def read_available_bytes(root: Path) -> int:
    """Return the memory that can still be had, bounded by the limits of control groups.

    Args:
        root: Where the file systems ``proc`` and ``sys`` are mounted.
    """
    available = _read_field(root / "proc/meminfo", "MemAvailable:")
    if available is None:
        available = _read_available_elsewhere()
    else:
        available *= 1024
    for group in _control_groups(root, "memory"):
        free = _read_free_bytes(group, available)
        if free is not None:
            available = min(available, free)
    return max(0, available)


def _read_available_elsewhere() -> int:
    try:
        return int(psutil.virtual_memory().available)
    except OSError:  # Linux without /proc; what could be freed for others does not count then
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_total_bytes() -> int:
    """Return the memory of the whole machine, whatever part of it may be used."""
    try:
        return int(psutil.virtual_memory().total)
    except OSError:  # Linux without /proc
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_shared_bytes(folder: Path = Path("/dev/shm")) -> int | None:  # noqa: S108 - not to write to
    """Return the room that is left for named shared memory; None if the system has no folder for it.

    Args:
        folder: Where it lies.
    """
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def _read_free_bytes(group: Path, enough: int) -> int | None:
    """Return what a control group may still take, or so much that is enough; None without a limit."""
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _read_text(group / limit_name).strip()
        usage = _read_text(group / usage_name).strip()
        if limit.isdecimal() and usage.isdecimal():
            free = int(limit) - int(usage)
            if free < enough:
                # Cached file pages count as used but are given up on demand. The system adds them up
                # when it is asked, which takes a tenth of a millisecond.
                free += _read_field(group / "memory.stat", cache_name) or 0
            return free
    return None


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of all control groups of this process, versions 1 and 2, outward.

    A limit of an outer group binds as well. See cgroups(7) and proc_pid_mountinfo(5).
    """
    mounts = _control_group_mounts(root, controller)
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if controllers else 2
        if version == 1 and controller not in controllers.split(","):
            continue
        for mount_version, mount_root, mount_point in mounts:
            if mount_version != version:
                continue
            # In a container the mount may start at the container's own group.
            inside = Path(path.removeprefix(mount_root.rstrip("/")).lstrip("/"))
            folder = root / mount_point.lstrip("/")
            for group in (inside, *inside.parents):
                yield folder / group


@cache
def _control_group_mounts(root: Path, controller: str) -> list[tuple[int, str, str]]:
    """Return version, root within the hierarchy and mount point of each, which stay as they are."""
    found = []
    for line in _read_text(root / "proc/self/mountinfo").splitlines():
        mount, _, file_system = line.partition(" - ")
        words, system = mount.split(), file_system.split()
        if system[:1] == ["cgroup2"]:
            found.append((2, words[3], words[4]))
        elif system[:1] == ["cgroup"] and controller in system[2].split(","):
            found.append((1, words[3], words[4]))
    return found


def _detect_accelerator() -> str | None:
    accelerator = torch.accelerator.current_accelerator()
    # Counting asks the driver's management library; is_available() would initialise CUDA,
    # after which forked workers could not use it.
    if accelerator is None or torch.accelerator.device_count() == 0:
        return None
    return accelerator.type


def _count_threads(root: Path) -> int:
    """Count the threads that may hold a lock which a forked child would wait for for ever."""
    ours = {thread.native_id for thread in threading.enumerate()}
    names = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and thread is not threading.main_thread()
    ]
    process_name = _read_text(root / "proc/self/comm")
    for task in (root / "proc/self/task").glob("*"):
        name = _read_text(task / "comm")
        # A thread that nobody named bears the process's name: OpenMP's and BLAS's do.
        if name and name != process_name and int(task.name) not in ours:
            names.append(name)
    return sum(not name.startswith(_HARMLESS_THREADS) for name in names)


def _is_main_importable() -> bool:
    """Tell whether the main script guards itself by ``if __name__ == "__main__"``."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or multiprocessing.parent_process() is not None:
        return True  # an interactive session, or a child that has imported it already
    text = _read_text(Path(path))
    return not text or "__name__" in text


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")  # quicker than reading text
    except OSError:
        return ""


def _read_field(path: Path, name: str) -> int | None:
    """Return the number after `name` in a file of names and numbers."""
    for line in _read_text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return None
