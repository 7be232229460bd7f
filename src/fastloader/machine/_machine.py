"""What this process may use: CPUs, memory, accelerator, and where it stands among others."""

import multiprocessing
import os
import platform
import shutil
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

import psutil
import torch
from torch.utils.data import get_worker_info

from fastloader.machine._control_groups import read_free_bytes, read_quota_cpus
from fastloader.machine._environment import PROCESS_ENVIRONMENT
from fastloader.machine._system_files import read_field, read_text

if sys.platform != "win32":
    import resource

__all__ = [
    "Machine",
    "detect_fork_hazard",
    "may_fork_safely",
    "read_available_bytes",
    "read_machine",
    "read_processor",
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
_TASK_CPUS = "SLURM_CPUS_PER_TASK"

_CPU_FACTS = ("affinity_cpus", "granted_cpus", "local_world_size", "rank_cpus")

_START_METHODS = tuple(multiprocessing.get_all_start_methods())

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


@dataclass(frozen=True, kw_only=True)
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

    def count_that_fit(self, num_bytes: int, most: int) -> int:
        """Return how many pieces of memory can still be had.

        Args:
            num_bytes: Of each.
            most: That are asked for.
        """
        return min(most, self.available_bytes // num_bytes)


class _ThisMachine(Machine):
    """The facts of this process; those that take long to read are read when they are first asked for.

    Args:
        root: Where the file systems ``proc`` and ``sys`` are mounted.
        environment: Environment variables; None stands for those of this process.
        facts: That are known already, by name.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        environment: Mapping[str, str] | None = None,
        **facts: object,
    ) -> None:
        own = vars(self)  # the class is frozen
        own["_top"] = _without_slash(root)
        own["_environment"] = environment
        own["is_daemonic"] = multiprocessing.current_process().daemon
        own["is_worker"] = get_worker_info() is not None
        own.update(facts)

    _top: str
    _environment: Mapping[str, str] | None
    start_methods = _START_METHODS
    has_memory_files = hasattr(os, "memfd_create")

    @cached_property
    def affinity_cpus(self) -> int:
        return self._read_cpus("affinity_cpus")

    @cached_property
    def granted_cpus(self) -> int:
        return self._read_cpus("granted_cpus")

    @cached_property
    def local_world_size(self) -> int:
        return self._read_cpus("local_world_size")

    @cached_property
    def rank_cpus(self) -> int:
        return self._read_cpus("rank_cpus")

    def _read_cpus(self, name: str) -> int:
        """Read all that is known of CPUs, and return one of these facts."""
        variables = self._environment
        if variables is None:
            variables = PROCESS_ENVIRONMENT.those_set((_TASK_CPUS, *_LOCAL_WORLD_SIZE))
        affinity_cpus = _count_affinity_cpus()
        shared = _share_cpus(
            affinity_cpus, read_quota_cpus(self._top), tuple(variables.items())
        )
        own = vars(self)
        for fact, value in zip(_CPU_FACTS, (affinity_cpus, *shared), strict=True):
            own.setdefault(fact, value)  # what was given stays
        return int(own[name])

    @cached_property
    def available_bytes(self) -> int:
        return _available_bytes(self._top, None)

    def count_that_fit(self, num_bytes: int, most: int) -> int:
        if "available_bytes" in vars(self):
            return super().count_that_fit(num_bytes, most)
        return min(most, _available_bytes(self._top, most * num_bytes) // num_bytes)

    @cached_property
    def accelerator(self) -> str | None:
        return _detect_accelerator()

    @cached_property
    def start_method(self) -> str:
        # get_start_method() would fix the global method; its first use belongs to the user.
        return multiprocessing.get_start_method(allow_none=True) or _START_METHODS[0]

    @cached_property
    def num_threads(self) -> int:
        return _count_threads(self._top)

    @cached_property
    def is_main_importable(self) -> bool:
        return _is_main_importable()

    @cached_property
    def fork_hazard(self) -> str | None:
        return detect_fork_hazard()

    @cached_property
    def max_open_files(self) -> int | None:
        return _read_max_open_files()


def read_machine(
    root: Path = Path("/"), environment: Mapping[str, str] | None = None
) -> Machine:
    """Return the facts, each read when it is first asked for; no accelerator is initialised.

    Args:
        root: Where the file systems ``proc`` and ``sys`` are mounted.
        environment: Environment variables, those of this process by default.
    """
    return _ThisMachine(root, environment)


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


def may_fork_safely() -> bool:
    """Return whether a child that is forked now would wait for nothing that this process has."""
    return _count_threads("") == 0 and detect_fork_hazard() is None


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


@lru_cache(maxsize=16)  # as each new loader asks, and nothing changes as a rule
def _share_cpus(
    affinity_cpus: int, quota_cpus: float | None, variables: tuple[tuple[str, str], ...]
) -> tuple[int, int, int]:
    """Return the CPUs that the process and the other ranks get, the number of ranks, and the share of each.

    Args:
        affinity_cpus: That the process may run on.
        quota_cpus: CPUs' worth of time that its control groups get.
        variables: What schedulers and launchers have set.
    """
    environment = dict(variables)
    granted_cpus = min(affinity_cpus, affinity_cpus if quota_cpus is None else int(quota_cpus))
    granted_cpus = max(
        1, min(granted_cpus, _first_number(environment, (_TASK_CPUS,), granted_cpus))
    )
    num_ranks = max(1, _first_number(environment, _LOCAL_WORLD_SIZE, 1))
    if _TASK_CPUS in environment:
        num_tasks = _first_number(environment, ("SLURM_NTASKS_PER_NODE",), 1)
        if num_tasks == num_ranks:
            return granted_cpus, num_ranks, granted_cpus  # each rank is a task of its own
    return granted_cpus, num_ranks, max(1, granted_cpus // num_ranks)


def _count_affinity_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # noqa: TID251 - the module that may


def read_available_bytes(root: Path = Path("/"), enough_bytes: int | None = None) -> int:
    """Return the memory that can still be had, bounded by the limits of control groups.

    Args:
        root: Where the file systems ``proc`` and ``sys`` are mounted.
        enough_bytes: That there is more than this need not be told: memory that nobody uses is
            asked for in a fifth of the time that it takes to read how much others would give up.
    """
    return _available_bytes(_without_slash(root), enough_bytes)


def _available_bytes(top: str, enough_bytes: int | None) -> int:
    if enough_bytes is not None and sys.platform == "linux":
        unused = _read_unused_bytes()
        if unused >= enough_bytes:
            return max(0, read_free_bytes(top, unused))
    available = read_field(f"{top}/proc/meminfo", "MemAvailable:")
    if available is None:
        available = _read_available_elsewhere()
    else:
        available *= 1024
    return max(0, read_free_bytes(top, available))


def _read_available_elsewhere() -> int:
    try:
        return int(psutil.virtual_memory().available)
    except OSError:  # Linux without /proc; what could be freed for others does not count then
        return _read_unused_bytes()


def _read_unused_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_total_bytes() -> int:
    """Return the memory of the whole machine, whatever part of it may be used."""
    try:
        return int(psutil.virtual_memory().total)
    except OSError:  # Linux without /proc
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_processor(root: Path = Path("/")) -> str:
    """Return the model of the processor, as the system names it; empty if it does not.

    Args:
        root: Where the file system ``proc`` is mounted.
    """
    _, _, told = read_text(f"{_without_slash(root)}/proc/cpuinfo").partition("model name")
    return told.partition("\n")[0].strip("\t :") or platform.processor()


def read_shared_bytes(folder: Path = Path("/dev/shm")) -> int | None:  # noqa: S108 - not to write to
    """Return the room that is left for named shared memory; None if the system has no folder for it.

    Args:
        folder: Where it lies.
    """
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def _detect_accelerator() -> str | None:
    accelerator = torch.accelerator.current_accelerator()
    # Counting asks the driver's management library; is_available() would initialise CUDA,
    # after which forked workers could not use it.
    if accelerator is None or torch.accelerator.device_count() == 0:
        return None
    return accelerator.type


def _count_threads(root: str) -> int:
    """Count the threads that may hold a lock which a forked child would wait for for ever."""
    threads = threading.enumerate()
    ours = {str(thread.native_id) for thread in threads}
    here = {threading.current_thread(), threading.main_thread()}
    names = [thread.name for thread in threads if thread not in here]
    names += [
        _read_thread_name(root, os.getpid(), task)
        for task in _read_tasks(root)
        if task not in ours
    ]
    return sum(not name.startswith(_HARMLESS_THREADS) for name in names if name)


@lru_cache(maxsize=4096)  # once for each thread: there may be as many as CPUs
def _read_thread_name(root: str, _process: int, task: str) -> str:
    """Return the name that somebody gave to a thread, which is at its start; else nothing.

    OpenMP's and BLAS's threads have the name of the process.
    """
    name = read_text(f"{root}/proc/self/task/{task}/comm")
    return "" if name == read_text(f"{root}/proc/self/comm") else name


def _read_tasks(root: str) -> list[str]:
    try:
        return os.listdir(f"{root}/proc/self/task")  # noqa: PTH208
    except OSError:
        return []


def _is_main_importable() -> bool:
    """Tell whether the main script guards itself by ``if __name__ == "__main__"``."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or multiprocessing.parent_process() is not None:
        return True  # an interactive session, or a child that has imported it already
    return _is_guarded(path)


@cache
def _is_guarded(path: str) -> bool:
    text = read_text(path)
    return not text or "__name__" in text


def _without_slash(root: Path) -> str:
    return str(root).rstrip("/")
