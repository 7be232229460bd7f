"""Each cause is told from the evidence alone, with what to write against it."""

import ast
import dataclasses
import inspect
import re

import pytest

from fastloader import FastLoader, OMEArrowDataset
from fastloader.measuring import Evidence
from fastloader.measuring._causes import find_causes

SOUND = Evidence(
    cpus=4,
    num_workers=2,
    wait_share=0.05,
    wait_seconds=0.001,
    step_seconds=0.02,
    samples_seconds=0.01,
    batch_bytes=1e6,
    epoch_gap_seconds=0.01,
    epoch_seconds=10.0,
)
SLOW = dataclasses.replace(SOUND, wait_share=0.8, wait_seconds=0.08)

FAULTS = {
    "too_few_workers": ({"num_workers": 0, "samples_seconds": 0.06}, "num_workers=3"),
    "too_few_workers, one": ({"num_workers": 1, "samples_seconds": 0.06}, "num_workers=3"),
    "sample_cost": ({"num_workers": 4, "samples_seconds": 0.4}, "cache="),
    "storage": (
        {"num_workers": 2, "samples_seconds": 0.2, "computing_share": 0.1},
        "num_workers=11",
    ),
    "contention": (
        {
            "num_workers": 4,
            "busy_workers": 3.8,
            "samples_seconds": 0.1,
            "computing_share": 0.1,
        },
        "num_workers=1",
    ),
    "contention, stock": (
        {"num_workers": 4, "samples_seconds": 0.1, "computing_share": 0.1},
        "num_workers=1",
    ),
    "contention, though others have the cores": (
        {
            "num_workers": 4,
            "busy_workers": 3.8,
            "samples_seconds": 0.1,
            "computing_share": 0.1,
            "slowdown": 3.0,
        },
        "num_workers=1",
    ),
    "storage, of which one worker has nobody to wait for": (
        {"num_workers": 1, "samples_seconds": 0.1, "computing_share": 0.1},
        "num_workers=6",
    ),
    "too_few_workers, though others have the cores that the step wants": (
        {
            "num_workers": 0,
            "samples_seconds": 0.02,
            "slowdown": 4.0,
            "step_seconds": 0.08,
            "queued_step_seconds": 0.06,
        },
        "num_workers=1",
    ),
    "collate, though few samples take most of the time of all": (
        {"samples_seconds": 0.002, "slow_share": 0.7, "collate_seconds": 0.2},
        "get_batch",
    ),
    "contention, of threads": (
        {"uses_threads": True, "samples_seconds": 0.1},
        'workers="processes"',
    ),
    "storage, for workers that are only starting": (
        {
            "num_workers": 4,
            "busy_workers": 1.0,
            "samples_seconds": 0.1,
            "computing_share": 0.1,
        },
        "num_workers=6",
    ),
    "storage, a little of it at once": (
        {"num_workers": 2, "samples_seconds": 0.18, "computing_share": 0.1},
        "num_workers=9",
    ),
    "collate": (
        {"num_workers": 0, "collate_seconds": 0.07, "has_own_collate": True},
        "collate_fn=None",
    ),
    "collate, torch's": ({"num_workers": 0, "collate_seconds": 0.07}, "lists of numbers"),
    "collate, of large arrays": (
        {"num_workers": 0, "collate_seconds": 0.07, "batch_bytes": 7e7},
        "smaller types",
    ),
    "collate, of large arrays by stock's loader": (
        {"num_workers": 0, "collate_seconds": 0.07, "batch_bytes": 7e7, "is_fast": False},
        "FastLoader",
    ),
    "batch_transform": ({"num_workers": 0, "transform_seconds": 0.07}, "num_workers=4, or"),
    "batch_transform, all": (
        {"num_workers": 4, "transform_seconds": 0.3},
        "device_transform",
    ),
    "sampler": ({"order_seconds": 0.07}, "shuffle=True"),
    "device_transform": ({"device_transform_seconds": 0.06}, "batch_transform"),
    "device_transform, without workers": (
        {"device_transform_seconds": 0.06, "num_workers": 0},
        "with num_workers=1",
    ),
    "sampler, though the loop waits for a core": (
        {"order_seconds": 0.02, "queued_wait_seconds": 0.045},
        "shuffle=True",
    ),
    "storage, though the loop waits for a core": (
        {
            "num_workers": 4,
            "samples_seconds": 0.1,
            "computing_share": 0.1,
            "queued_wait_seconds": 0.035,
        },
        "num_workers=6",
    ),
    "slow_samples": (
        {"slow_share": 0.7, "slow_indices": (17, 3), "samples_seconds": 0.2},
        "num_workers=4, with in_order=False",
    ),
    "slow_samples, by enough workers": (
        {"slow_share": 0.7, "samples_seconds": 0.045, "step_seconds": 0.025},
        "in_order=False lets others overtake",
    ),
    "slow_samples, on all CPUs": (
        {"slow_share": 0.7, "slow_indices": (17,), "samples_seconds": 0.2, "num_workers": 4},
        "decoded once",
    ),
    "slow_samples, that are waited for": (
        {"slow_share": 0.7, "samples_seconds": 0.2, "computing_share": 0.1},
        "num_workers=11, with in_order=False",
    ),
    "transport, for all its collating": (
        {
            "is_fast": False,
            "batch_bytes": 7e7,
            "samples_seconds": 1e-3,
            "collate_seconds": 5e-3,
        },
        'transport="shared"',
    ),
    "transport": (
        {"is_fast": False, "batch_bytes": 7e7, "fallbacks": ("transport='torch'",)},
        'transport="shared"',
    ),
    "too_many_workers, cheap": (
        {"samples_seconds": 1e-4, "step_seconds": 1e-4, "wait_seconds": 1e-3},
        "num_workers=0",
    ),
    "too_many_workers, cheap, though others have the cores": (
        {
            "samples_seconds": 5e-5,
            "collate_seconds": 7e-5,
            "step_seconds": 4e-4,
            "wait_seconds": 1.7e-3,
            "slowdown": 2.1,
        },
        "num_workers=0",
    ),
    "too_few_workers, that were slower at first": (
        {
            "num_workers": 1,
            "busy_workers": 0.95,
            "samples_seconds": 0.03,
            "step_seconds": 2e-3,
            "wait_seconds": 0.12,
        },
        "num_workers=4",
    ),
    "contention, of threads that have few cores": (
        {
            "uses_threads": True,
            "num_workers": 2,
            "busy_workers": 1.9,
            "samples_seconds": 0.03,
            "wait_seconds": 0.08,
        },
        "processes",
    ),
    "contention, of threads beside others": (
        {
            "uses_threads": True,
            "num_workers": 2,
            "samples_seconds": 0.03,
            "slowdown": 4.0,
        },
        "processes",
    ),
    "busy_cpus": ({"samples_seconds": 0.03, "slowdown": 6.0}, "fewer processes"),
    "busy_cpus, of which only the loop can tell": (
        {"num_workers": 0, "samples_seconds": 1e-3, "queued_wait_seconds": 0.078},
        "fewer processes",
    ),
    "busy_cpus, where nothing else explains the waiting": (
        {
            "samples_seconds": 0.03,
            "step_seconds": 0.03,
            "slowdown": 1.6,
            "busy_workers": 1.9,
        },
        "fewer processes",
    ),
    "unexplained": ({"samples_seconds": 0.045, "step_seconds": 0.03}, "fastloader.benchmark"),
}
FAULTS["storage, though the loop waits for nothing but a core"] = (
    {
        "num_workers": 1,
        "samples_seconds": 0.1,
        "computing_share": 0.1,
        "queued_wait_seconds": 0.08,
    },
    "num_workers=",
)
FAULTS_WITHOUT_WAITING = {
    "too_many_workers": ({"num_workers": 16}, "num_workers=1"),
    "cpu_oversubscription": (
        {"num_workers": 4, "threads_per_worker": 4.0},
        "set_num_threads(1)",
    ),
    "cpu_oversubscription, workers": (
        {"num_workers": 16, "threads_per_worker": 4.0, "cpus": 4},
        "num_workers=4",
    ),
    "cpu_oversubscription, torch's": (
        {"num_workers": 4, "threads_per_worker": 4.0, "is_fast": False},
        "FastLoader",
    ),
    "epoch_gap": (
        {"persistent_workers": False, "epoch_gap_seconds": 3.0, "epoch_seconds": 2.0},
        "persistent_workers=True",
    ),
    "epoch_gap, kept": ({"epoch_gap_seconds": 3.0, "epoch_seconds": 2.0}, "samples_per_epoch"),
    "contention, of threads with the loop": (
        {
            "uses_threads": True,
            "cpus": 2,
            "busy_workers": 1.9,
            "samples_seconds": 0.01,
            "wait_seconds": 0.0,
        },
        'workers="processes"',
    ),
    "pinning": ({"accelerator": "cuda", "batch_bytes": 7e7}, "pin_memory=True"),
    "copy": ({"copy_seconds": 0.05}, "uint8"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_cause_of_waiting_is_found_with_its_remedy(name):
    changes, remedy = FAULTS[name]

    findings = find_causes(dataclasses.replace(SLOW, **changes))

    assert [finding.cause for finding in findings] == [name.partition(",")[0]]
    assert remedy in findings[0].remedy
    assert findings[0].cost_share == 0.8


@pytest.mark.parametrize("name", FAULTS_WITHOUT_WAITING)
def test_a_fault_that_costs_no_waiting_is_found_with_its_remedy(name):
    changes, remedy = FAULTS_WITHOUT_WAITING[name]

    findings = find_causes(dataclasses.replace(SOUND, **changes))

    assert [finding.cause for finding in findings] == [name.partition(",")[0]]
    assert remedy in findings[0].remedy


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FAULTS, *FAULTS_WITHOUT_WAITING])
def test_what_a_remedy_says_to_write_can_be_written(name):
    evidence = SLOW if name in FAULTS else SOUND
    changes, _ = {**FAULTS, **FAULTS_WITHOUT_WAITING}[name]
    [finding] = find_causes(dataclasses.replace(evidence, **changes))

    told = dict(re.findall(r'(\w+)=("\w+"|\w+)?', finding.remedy))

    datasets_own = {"cache"}
    options = {n: ast.literal_eval(value) for n, value in told.items() if n not in datasets_own}
    for option in ("device", "resident"):  # not on every machine
        options.pop(option, None)
    assert datasets_own <= inspect.signature(OMEArrowDataset).parameters.keys()
    FastLoader(range(64), 8, **options)


@pytest.mark.parametrize(
    "changes",
    [{"samples_seconds": 0.02}, {"samples_seconds": 0.005}, {"computing_share": 0.4}],
    ids=["at work as long as alone", "for little of the time", "waiting for files"],
)
def test_threads_that_do_not_hold_up_the_loop_are_no_fault(changes):
    evidence = dataclasses.replace(
        SOUND, uses_threads=True, cpus=2, busy_workers=1.9, wait_seconds=0.0, **changes
    )

    assert not find_causes(evidence)


@pytest.mark.parametrize("wait_share", [None, 0.0, 0.1, 0.3])
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e3])
def test_how_long_something_takes_is_no_fault_by_itself(wait_share, factor):
    evidence = dataclasses.replace(
        SOUND,
        wait_share=wait_share,
        **{
            name: factor * getattr(SOUND, name)
            for name in ("wait_seconds", "step_seconds", "samples_seconds", "epoch_gap_seconds")
        },
        epoch_seconds=factor * SOUND.epoch_seconds,
    )

    assert find_causes(evidence) == ()


def test_the_dearest_cause_comes_first():
    evidence = dataclasses.replace(
        SLOW, num_workers=0, samples_seconds=0.06, epoch_gap_seconds=30.0, epoch_seconds=40.0
    )

    causes = [finding.cause for finding in find_causes(evidence)]

    assert causes == ["too_few_workers", "epoch_gap"]
