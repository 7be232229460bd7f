"""check_machine names each limit that will bite, and what to do about it."""

import dataclasses
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from fastloader.machine._machine import read_machine
from fastloader.testing import MachineFinding, MachineReport, _machine, check_machine

MACHINE = dataclasses.replace(
    read_machine(),
    affinity_cpus=8,
    granted_cpus=8,
    local_world_size=1,
    start_method="fork",
    is_daemonic=False,
    is_worker=False,
    is_main_importable=True,
    fork_hazard=None,
)
GIB = 1 << 30


def altered(**facts):
    return dataclasses.replace(MACHINE, **facts)


@pytest.mark.parametrize(
    ("finding", "outcome", "words"),
    [
        (_machine._check_cpus(MACHINE), "ok", "8 usable"),
        (_machine._check_cpus(altered(granted_cpus=2)), "note", "2 usable of 8"),
        (
            _machine._check_cpus(altered(local_world_size=4, rank_cpus=2)),
            "ok",
            "2 for each of 4 local ranks",
        ),
        (_machine._check_threads(2, 2, {}), "ok", "OMP_NUM_THREADS is not set"),
        (_machine._check_threads(2, 64, {}), "bites", "more than the 2 CPUs"),
        (_machine._check_threads(2, 8, {"OMP_NUM_THREADS": "8"}), "bites", "NUM_THREADS=8"),
        (_machine._check_memory(8 * GIB, 9 * GIB), "ok", "8.0 GiB available of 9.0 GiB"),
        (_machine._check_memory(GIB, 9 * GIB), "bites", "1.0 GiB available"),
        (_machine._check_shared_memory(True, 64 << 20), "note", "0.1 GiB free in /dev/shm"),
        (_machine._check_shared_memory(True, None), "ok", "anonymous"),
        (_machine._check_shared_memory(False, None), "bites", "no anonymous memory files"),
        (_machine._check_open_files(256), "bites", "at most 256"),
        (_machine._check_open_files(1024), "ok", "1024"),
        (_machine._check_open_files(None), "ok", "no limit"),
        (_machine._check_start_method(MACHINE), "ok", "fork"),
        (_machine._check_start_method(altered(is_daemonic=True)), "bites", "may not start"),
        (
            _machine._check_start_method(
                altered(start_method="spawn", is_main_importable=False)
            ),
            "bites",
            "no guard",
        ),
        (
            _machine._check_start_method(altered(fork_hazard="zarr decodes by zarrs")),
            "note",
            "zarr decodes by zarrs",
        ),
        (_machine._check_accelerator(None, None, False), "ok", "none"),
        (_machine._check_accelerator(None, "13.0", True), "bites", "built for CUDA 13.0"),
        (_machine._check_accelerator(None, None, True), "bites", "built without CUDA"),
        (_machine._check_cache_folder(Path("/nosuch")), "ok", "/nosuch"),
        (
            next(_machine._check_environment({"FASTLOADER_NUM_WORKERS": "0"})),
            "note",
            "FASTLOADER_NUM_WORKERS=0",
        ),
        (
            next(_machine._check_environment({"FASTLOADER_NUM_WORKERS": "many"})),
            "bites",
            "many",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, MachineFinding) else None,
)
def test_a_limit_is_judged(finding, outcome, words):
    if finding.name == "cache folder" and finding.outcome != "ok":
        pytest.skip("this user may not write to /")

    assert finding.outcome == outcome
    assert words in finding.detail
    assert bool(finding.remedy) == (outcome != "ok")


def test_a_cache_folder_that_cannot_be_written_to_bites(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)

    finding = _machine._check_cache_folder(tmp_path / "cache")

    assert finding.outcome == "bites"
    assert "FASTLOADER_CACHE_DIR" in finding.remedy


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("fastloader.errors", "ok", "are compiled"),
        ("fastloader.nosuch", "note", "NumPy"),
        ("damaged_kernels", "bites", "damaged_kernels"),
    ],
    ids=["built", "not built", "cannot be imported"],
)
def test_kernels_are_judged(tmp_path, monkeypatch, name, outcome, words):
    monkeypatch.delenv("FASTLOADER_KERNELS", raising=False)
    (tmp_path / f"damaged_kernels{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)

    finding = _machine._check_kernels("fastloader.typing", name)

    assert finding.outcome == outcome
    assert words in finding.detail
    assert bool(finding.remedy) == (outcome != "ok")


def test_extras_that_are_missing_come_with_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "fsspec" or None)

    [finding] = _machine._check_extras()

    assert finding.remedy.startswith(
        'pip install "fastloader[cli,duckdb,gpu,lance,plot,tiff,vortex]"'
    )


def test_this_machine_is_described():
    report = check_machine()

    names = [finding.name for finding in report.findings]
    assert names[:3] == ["CPUs", "threads", "memory"]
    for finding in report.findings:
        assert finding.detail in str(report)


def test_a_report_is_ok_unless_something_bites():
    note = MachineFinding("one", "note", "so it is", "live with it")
    bites = MachineFinding("other", "bites", "ouch", "mend it")

    assert MachineReport((note,)).ok
    assert not MachineReport((note, bites)).ok
    assert str(MachineReport((bites,))) == "bites  other  ouch\n              -> mend it"
