"""What this process may use, read from real and from made-up systems."""

import contextlib
import multiprocessing
import os
import sys
import threading
import types

import psutil
import pytest
import torch

from fastloader.machine import _machine as machine_module
from fastloader.machine._machine import (
    read_available_bytes,
    read_machine,
    read_processor,
)

GB = 1 << 30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A made-up machine of 16 CPUs and 64 GB; the test adds files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    write({"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {64 * GB // 1024} kB\n"})
    return write


def test_the_processor_is_told_by_its_model(system):
    folder = system({
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Quick: 9 GHz\nflags\t: a\n"
    })

    assert read_processor(folder) == "Quick: 9 GHz"
    assert isinstance(read_processor(folder / "nowhere"), str)


VERSION_2 = {
    "proc/self/cgroup": "0::/user/job\n",
    "proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
VERSION_1 = {
    "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/job\n0::/job\n",
    "proc/self/mountinfo": (
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    ),
}
CONTAINER = {
    "proc/self/cgroup": "0::/docker/abc\n",
    "proc/self/mountinfo": "31 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}


@pytest.mark.parametrize(
    ("files", "num_cpus"),
    [
        ({}, 16),
        ({**VERSION_2, "sys/fs/cgroup/user/job/cpu.max": "max 100000\n"}, 16),
        ({**VERSION_2, "sys/fs/cgroup/user/job/cpu.max": "250000 100000\n"}, 2),
        ({**VERSION_2, "sys/fs/cgroup/user/job/cpu.max": "50000 100000\n"}, 1),
        ({**VERSION_2, "sys/fs/cgroup/user/cpu.max": "300000 100000\n"}, 3),
        ({**CONTAINER, "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        (
            {
                **VERSION_1,
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
        (
            {
                **VERSION_1,
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "500000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
    ],
    ids=[
        "no groups",
        "v2 unlimited",
        "v2 quota",
        "v2 under one CPU",
        "v2 outer group",
        "v2 container",
        "v1 unlimited",
        "v1 quota",
    ],
)
def test_granted_cpus_obey_affinity_and_quota(system, files, num_cpus):
    assert read_machine(system(files), {}).granted_cpus == num_cpus


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 64 * GB),
        (
            {
                **VERSION_2,
                "sys/fs/cgroup/user/job/memory.max": f"{8 * GB}\n",
                "sys/fs/cgroup/user/job/memory.current": f"{5 * GB}\n",
                "sys/fs/cgroup/user/job/memory.stat": f"anon 1\ninactive_file {GB}\n",
            },
            4 * GB,
        ),
        (
            {
                **VERSION_2,
                "sys/fs/cgroup/user/job/memory.max": "max\n",
                "sys/fs/cgroup/user/job/memory.current": f"{5 * GB}\n",
            },
            64 * GB,
        ),
        (
            {
                **VERSION_2,
                "sys/fs/cgroup/user/job/memory.max": f"{30 * GB}\n",
                "sys/fs/cgroup/user/job/memory.high": f"{9 * GB}\n",
                "sys/fs/cgroup/user/job/memory.current": f"{2 * GB}\n",
                "sys/fs/cgroup/user/memory.max": "max\n",
                "sys/fs/cgroup/user/memory.high": f"{12 * GB}\n",
                "sys/fs/cgroup/user/memory.current": f"{6 * GB}\n",
            },
            6 * GB,
        ),
        (
            {
                **VERSION_1,
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GB}\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{3 * GB}\n",
            },
            0,
        ),
    ],
    ids=[
        "no groups",
        "v2 limit",
        "v2 unlimited",
        "v2 slowed down, nested",
        "v1 over its limit",
    ],
)
def test_available_memory_obeys_the_groups_limit(system, files, available):
    assert read_machine(system(files), {}).available_bytes == available


@pytest.mark.parametrize(
    ("environment", "local_world_size", "rank_cpus"),
    [
        ({}, 1, 16),
        ({"LOCAL_WORLD_SIZE": "4"}, 4, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2, 8),
        ({"LOCAL_WORLD_SIZE": "64"}, 64, 1),
        ({"LOCAL_WORLD_SIZE": "many"}, 1, 16),
        ({"SLURM_CPUS_PER_TASK": "1"}, 1, 1),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4, 4),
        ({"SLURM_NTASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "6"}, 4, 6),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_CPUS_PER_TASK": "12"}, 4, 3),
    ],
    ids=[
        "alone",
        "torchrun",
        "Open MPI",
        "more ranks than CPUs",
        "nonsense",
        "one CPU granted",
        "SLURM tasks",
        "SLURM tasks with CPUs",
        "torchrun in one SLURM task",
    ],
)
def test_ranks_share_the_cpus(system, environment, local_world_size, rank_cpus):
    machine = read_machine(system({}), environment)

    assert (machine.local_world_size, machine.rank_cpus) == (local_world_size, rank_cpus)


def test_named_threads_of_libraries_are_counted_and_harmless_ones_are_not(system):
    names = [
        "python",
        "python",
        "polars-0",
        "tokio-rt-worker",
        "jemalloc_bg_thd",
        "pt_autograd_0",
    ]
    files = {f"proc/self/task/{10_000_000 + n}/comm": name for n, name in enumerate(names)}

    machine = read_machine(system({**files, "proc/self/comm": "python"}), {})

    assert machine.num_threads == 2


@contextlib.contextmanager
def thread_named(name):
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name=name)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.parametrize(("name", "count"), [("writer", 1), ("tqdm_monitor", 0)])
def test_python_threads_that_a_fork_would_freeze_are_counted(system, name, count):
    with thread_named(name):
        num_threads = read_machine(system({}), {}).num_threads

    assert num_threads == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [("print(1)\n", False), ('if __name__ == "__main__":\n    print(1)\n', True), (None, True)],
    ids=["bare", "guarded", "interactive"],
)
def test_a_script_without_a_guard_cannot_be_imported_again(
    system, tmp_path, monkeypatch, text, expected
):
    main = types.ModuleType("__main__")
    if text is not None:
        main.__file__ = str(tmp_path / "script.py")
        (tmp_path / "script.py").write_text(text)
    monkeypatch.setitem(sys.modules, "__main__", main)

    assert read_machine(system({}), {}).is_main_importable is expected


@pytest.mark.parametrize(
    ("accelerator", "count", "expected"),
    [(None, 0, None), (torch.device("cuda"), 0, None), (torch.device("cuda"), 2, "cuda")],
    ids=["none built", "none there", "two there"],
)
def test_an_accelerator_counts_if_there_is_a_device(
    system, monkeypatch, accelerator, count, expected
):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)

    assert read_machine(system({}), {}).accelerator == expected


def test_this_machine_can_be_read():
    machine = read_machine()

    assert 1 <= machine.rank_cpus <= machine.granted_cpus <= machine.affinity_cpus
    assert machine.available_bytes > 0
    assert machine.start_method in machine.start_methods
    assert not machine.is_worker
    assert not machine.is_daemonic


def test_reading_does_not_fix_the_start_method():
    before = multiprocessing.get_start_method(allow_none=True)

    read_machine()

    assert multiprocessing.get_start_method(allow_none=True) == before


def test_memory_is_known_on_a_machine_without_proc(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path), raising=False)

    available = read_available_bytes(tmp_path)

    assert 0 < available < 1 << 50


@pytest.mark.parametrize(
    ("unused", "told"), [(8, 8), (7, 64)], ids=["enough is unused", "files may give way"]
)
def test_no_more_memory_is_looked_for_than_is_enough(system, monkeypatch, unused, told):
    monkeypatch.setattr(machine_module, "_read_unused_bytes", lambda: unused * GB)
    monkeypatch.setattr(machine_module.sys, "platform", "linux")

    root = system({})

    assert read_machine(root, {}).count_that_fit(GB, most=8) == 8
    assert read_available_bytes(root, enough_bytes=8 * GB) == told * GB


def test_enough_unused_memory_obeys_the_groups_limit(system, monkeypatch):
    monkeypatch.setattr(machine_module, "_read_unused_bytes", lambda: 8 * GB)
    group = "sys/fs/cgroup/user/job/memory"
    root = system({
        **VERSION_2,
        f"{group}.max": f"{8 * GB}\n",
        f"{group}.current": f"{5 * GB}\n",
    })

    assert read_available_bytes(root, enough_bytes=4 * GB) == 3 * GB


def test_limits_of_groups_are_looked_for_once_and_free_memory_is_read_each_time(system):
    group = "sys/fs/cgroup/user/job/memory"
    root = system({
        **VERSION_2,
        f"{group}.max": f"{8 * GB}\n",
        f"{group}.current": f"{5 * GB}\n",
    })
    before = read_available_bytes(root)
    system({"proc/self/mountinfo": "", f"{group}.current": f"{6 * GB}\n"})

    assert (before, read_available_bytes(root)) == (3 * GB, 2 * GB)


def test_what_is_known_already_is_not_read_over():
    machine = machine_module._ThisMachine(rank_cpus=99)

    assert machine.affinity_cpus == read_machine().affinity_cpus
    assert machine.rank_cpus == 99
