"""Settings chosen from facts are valid for any machine, dataset and caller."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastloader.machine._machine import Machine
from fastloader.settings._choice import Choice
from fastloader.settings._choose_workers import choose_most_workers, choose_spare_workers
from fastloader.settings._inputs import DatasetTraits, GivenOptions

GB = 1 << 30
PLAIN = Machine(
    affinity_cpus=8,
    granted_cpus=8,
    rank_cpus=8,
    local_world_size=1,
    available_bytes=64 * GB,
    accelerator=None,
    is_daemonic=False,
    is_worker=False,
    start_method="fork",
    start_methods=("fork", "spawn", "forkserver"),
    num_threads=0,
    is_main_importable=True,
    has_memory_files=True,
)
OPAQUE = DatasetTraits(is_iterable=False, batched=False, num_batches=1000)

methods = st.sampled_from([
    ("fork", "spawn", "forkserver"),
    ("spawn",),
    ("forkserver", "spawn"),
])


@st.composite
def machines(draw):
    usable = draw(st.integers(1, 256))
    start_methods = draw(methods)
    return Machine(
        affinity_cpus=draw(st.integers(usable, 256)),
        granted_cpus=usable,
        rank_cpus=draw(st.integers(1, usable)),
        local_world_size=draw(st.integers(1, 16)),
        available_bytes=draw(st.integers(0, 1024 * GB)),
        accelerator=draw(st.sampled_from([None, "cuda", "mps", "xpu"])),
        is_daemonic=draw(st.booleans()),
        is_worker=draw(st.booleans()),
        start_method=draw(st.sampled_from(start_methods)),
        start_methods=start_methods,
        num_threads=draw(st.integers(0, 3)),
        is_main_importable=draw(st.booleans()),
        has_memory_files=draw(st.booleans()),
    )


traits = st.builds(
    DatasetTraits,
    is_iterable=st.booleans(),
    batched=st.booleans(),
    wants_workers=st.booleans(),
    is_sequence=st.booleans(),
    num_shards=st.none() | st.integers(1, 40),
    num_batches=st.none() | st.integers(0, 10_000),
    tied=st.none() | st.just("tied here"),
    on_device=st.booleans(),
)
auto = st.just("auto")
suggestions = st.sampled_from([
    None,
    "nothing is stored",
    Choice(PLAIN, OPAQUE, GivenOptions(num_workers=0)).settings,
    Choice(
        PLAIN,
        OPAQUE,
        GivenOptions(num_workers=12, workers="threads", prefetch_factor=5, in_order=False),
    ).settings,
    Choice(
        PLAIN,
        OPAQUE,
        GivenOptions(
            num_workers=3, persistent_workers=False, transport="torch", pin_memory=True
        ),
    ).settings,
])
options = st.builds(
    GivenOptions,
    num_workers=auto | st.integers(0, 300),
    prefetch_factor=auto | st.none() | st.integers(1, 9),
    persistent_workers=auto | st.booleans(),
    multiprocessing_context=auto | st.none(),
    timeout=st.floats(0, 100),
    pin_memory=auto | st.booleans(),
    transport=auto | st.sampled_from(["shared", "torch"]),
    device=st.none() | st.sampled_from(["cpu", "cuda:0"]),
    workers=auto | st.sampled_from(["processes", "threads"]),
    in_order=auto | st.booleans(),
    resident=st.none(),
    num_workers_override=st.none() | st.integers(0, 40),
    has_worker_init_fn=st.booleans(),
    suggested=suggestions,
)


@given(machines(), traits, options)
def test_any_choice_is_valid_and_has_reasons(machine, dataset, given_options):
    settings = Choice(machine, dataset, given_options).settings  # validates itself

    assert all(settings.reasons.values())
    assert settings.explain()


@given(machines(), traits, options)
def test_a_given_value_always_wins(machine, dataset, given_options):
    settings = Choice(machine, dataset, given_options).settings

    names = ["num_workers", "pin_memory", "transport", "workers", "in_order"]
    if settings.num_workers > 0:
        names += ["prefetch_factor", "persistent_workers", "timeout"]
    for name in names:
        value = getattr(given_options, name)
        if value not in {"auto", None}:
            assert getattr(settings, name) == value


@given(machines(), traits, options)
def test_choosing_again_from_what_was_chosen_changes_nothing(machine, dataset, given_options):
    first = Choice(machine, dataset, given_options).settings

    again = Choice(
        machine,
        dataset,
        GivenOptions(
            num_workers=first.num_workers,
            prefetch_factor=first.prefetch_factor,
            persistent_workers=first.persistent_workers,
            multiprocessing_context=first.multiprocessing_context,
            timeout=first.timeout,
            pin_memory=first.pin_memory,
            transport=first.transport,
            workers=first.workers,
            in_order=first.in_order,
            device=first.device,
            suggested=given_options.suggested,
        ),
    ).settings

    assert dataclasses.replace(again, reasons=first.reasons, ignored=first.ignored) == first
    assert again.ignored == ()


@given(machines(), traits, options)
def test_an_automatic_number_of_workers_never_fails_or_repeats_data(
    machine, dataset, given_options
):
    given_options = given_options._replace(num_workers="auto")
    settings = Choice(machine, dataset, given_options).settings

    starts_processes = settings.workers == "processes" and settings.num_workers > 0
    if machine.is_daemonic or machine.is_worker or dataset.tied is not None:
        assert not starts_processes
    if dataset.is_iterable:
        assert settings.num_workers <= (dataset.num_shards or 1)
    is_suggested = not isinstance(given_options.suggested, str | None)
    if given_options.num_workers_override is None and not is_suggested:
        assert settings.num_workers <= machine.granted_cpus


def test_settings_that_were_suggested_fill_what_is_left_open():
    wanted = Choice(
        PLAIN,
        OPAQUE,
        GivenOptions(num_workers=12, workers="threads", prefetch_factor=5, in_order=False),
    ).settings

    settings = Choice(PLAIN, OPAQUE, GivenOptions(suggested=wanted, prefetch_factor=3)).settings

    assert settings == dataclasses.replace(wanted, prefetch_factor=3, reasons=settings.reasons)
    assert settings.reasons["num_workers"] == wanted.reasons["num_workers"]


def test_of_suggested_workers_no_more_start_than_memory_has_room_for():
    wanted = Choice(PLAIN, OPAQUE, GivenOptions(num_workers=12)).settings
    small = dataclasses.replace(PLAIN, available_bytes=GB)

    settings = Choice(small, OPAQUE, GivenOptions(suggested=wanted)).settings

    assert settings.num_workers == 4
    assert "memory" in settings.reasons["num_workers"]


def test_that_nothing_could_be_suggested_is_said_beside_the_number_of_workers():
    settings = Choice(PLAIN, OPAQUE, GivenOptions(suggested="nothing is stored")).settings

    assert settings.num_workers == 8
    assert "as they are needed" in settings.reasons["num_workers"]
    assert settings.reasons["num_workers"].endswith("; nothing is stored")


@pytest.mark.parametrize(
    ("changes", "num_workers"),
    [
        ({}, 8),
        ({"granted_cpus": 1, "rank_cpus": 1}, 0),
        ({"granted_cpus": 1, "rank_cpus": 1, "accelerator": "cuda"}, 1),
        ({"granted_cpus": 128, "rank_cpus": 128}, 16),
        ({"granted_cpus": 128, "rank_cpus": 4, "local_world_size": 32}, 4),
        ({"available_bytes": GB}, 2),
        ({"is_daemonic": True}, 0),
        ({"is_worker": True}, 0),
    ],
    ids=[
        "eight CPUs",
        "one CPU",
        "one CPU and an accelerator",
        "a huge machine",
        "many ranks",
        "little memory",
        "daemonic",
        "in a worker",
    ],
)
def test_the_number_of_workers_fits_the_machine(changes, num_workers):
    machine = dataclasses.replace(PLAIN, **changes)

    assert Choice(machine, OPAQUE, GivenOptions()).settings.num_workers == num_workers


@pytest.mark.parametrize(
    ("machine_changes", "dataset_changes", "options", "most"),
    [
        ({}, {}, {}, 32),
        ({"rank_cpus": 2}, {}, {}, 32),
        ({"available_bytes": 5 * GB}, {}, {}, 20),
        ({"available_bytes": 5 * GB, "rank_cpus": 4, "local_world_size": 2}, {}, {}, 10),
        ({"max_open_files": 256}, {}, {}, 16),
        ({}, {"num_batches": 12}, {}, 12),
        ({}, {}, {"has_worker_init_fn": True}, 8),
        ({}, {}, {"num_workers": 3}, 3),
        ({}, {}, {"num_workers_override": 3}, 3),
        ({}, {}, {"persistent_workers": True}, 7),
        ({}, {}, {"workers": "threads"}, 7),
        ({}, {"is_iterable": True, "num_shards": 3}, {}, 3),
        ({}, {"batched": True}, {}, 0),
    ],
    ids=[
        "plenty of everything",
        "few CPUs",
        "little memory",
        "shared memory",
        "few open files",
        "few batches",
        "numbered by the caller",
        "given",
        "by the environment",
        "kept by wish",
        "threads",
        "shards",
        "batched",
    ],
)
def test_workers_that_wait_may_be_more_than_the_cpus(
    machine_changes, dataset_changes, options, most
):
    machine = dataclasses.replace(PLAIN, **machine_changes)
    dataset = OPAQUE._replace(**dataset_changes)
    given_options = GivenOptions(**options)
    settings = Choice(machine, dataset, given_options).settings

    found = choose_most_workers(machine, dataset, given_options, settings.num_workers)

    assert found == most
    is_said = f"up to {most} where they wait" in settings.reasons["num_workers"]
    assert is_said == (most > settings.num_workers)


@pytest.mark.parametrize(
    ("options", "num_workers"),
    [({}, 8), ({"persistent_workers": False}, 7), ({"persistent_workers": True}, 7)],
    ids=["growing", "anew each epoch", "kept by wish"],
)
def test_workers_that_all_start_at_once_leave_a_cpu_to_training(options, num_workers):
    settings = Choice(PLAIN, OPAQUE, GivenOptions(**options)).settings

    assert settings.num_workers == num_workers
    assert ("as they are needed" in settings.reasons["num_workers"]) == (num_workers == 8)


@pytest.mark.parametrize(
    ("changes", "num_workers"),
    [
        ({"batched": True}, 0),
        ({"batched": True, "wants_workers": True}, 8),
        ({"is_sequence": True}, 0),
        ({"num_batches": 3}, 3),
        ({"num_batches": 1}, 0),
        ({"num_batches": None}, 8),
        ({"is_iterable": True, "num_batches": None}, 1),
        ({"is_iterable": True, "num_batches": None, "num_shards": 3}, 3),
        ({"tied": "holds CUDA tensors"}, 0),
    ],
    ids=[
        "batched",
        "batched and costly",
        "in memory",
        "three batches",
        "one batch",
        "unknown length",
        "iterable",
        "three shards",
        "tied",
    ],
)
def test_the_number_of_workers_fits_the_dataset(changes, num_workers):
    dataset = OPAQUE._replace(**changes)

    assert Choice(PLAIN, dataset, GivenOptions()).settings.num_workers == num_workers


@pytest.mark.parametrize(("device", "num_workers"), [("cuda:0", 0), ("cpu", 8)])
def test_costly_batches_that_are_made_on_the_device_need_no_workers(device, num_workers):
    dataset = OPAQUE._replace(batched=True, wants_workers=True)
    options = GivenOptions(device=device, resident="device")

    assert Choice(PLAIN, dataset, options).settings.num_workers == num_workers


@pytest.mark.parametrize(
    ("changes", "context", "method"),
    [
        ({}, "auto", "fork"),
        ({"num_threads": 2}, "auto", "forkserver"),
        ({"num_threads": 2, "is_main_importable": False}, "auto", "fork"),
        ({"num_threads": 2}, "fork", "fork"),
        ({"num_threads": 2}, None, "fork"),
        ({"num_threads": 2, "start_method": "spawn"}, "auto", "spawn"),
        ({"fork_hazard": "zarr decodes by zarrs"}, "auto", "forkserver"),
        ({}, "spawn", "spawn"),
    ],
    ids=[
        "default",
        "threads alive",
        "threads alive, bare script",
        "fork given",
        "default given",
        "spawn set globally",
        "zarrs",
        "spawn given",
    ],
)
def test_workers_are_forked_unless_threads_are_alive(changes, context, method):
    machine = dataclasses.replace(PLAIN, **changes)
    given_options = GivenOptions(num_workers=2, multiprocessing_context=context)

    settings = Choice(machine, OPAQUE, given_options).settings

    assert settings.multiprocessing_context == method


@pytest.mark.parametrize(
    ("machine", "dataset", "options", "pinned"),
    [
        ({}, {}, {}, False),
        ({"accelerator": "cuda"}, {}, {}, True),
        ({"accelerator": "mps"}, {}, {}, False),
        ({"accelerator": "cuda"}, {"on_device": True}, {}, False),
        ({"accelerator": "cuda"}, {}, {"device": "cpu"}, False),
        ({"accelerator": "cuda", "is_worker": True}, {}, {}, False),
        ({}, {}, {"pin_memory": True}, True),
    ],
    ids=["none", "cuda", "mps", "data on the device", "to the CPU", "in a worker", "given"],
)
def test_memory_is_pinned_where_copies_gain_from_it(machine, dataset, options, pinned):
    settings = Choice(
        dataclasses.replace(PLAIN, **machine),
        OPAQUE._replace(**dataset),
        GivenOptions(**options),
    ).settings

    assert settings.pin_memory is pinned


@pytest.mark.parametrize(
    "options",
    [{"prefetch_factor": 4}, {"persistent_workers": True}, {"timeout": 3.0}],
    ids=str,
)
def test_worker_options_without_workers_are_listed_as_ignored(options):
    settings = Choice(PLAIN, OPAQUE, GivenOptions(num_workers=0, **options)).settings

    [(name, value)] = options.items()
    assert settings.ignored == (f"{name}={value!r}",)


BATCHED = DatasetTraits(is_iterable=False, batched=True, num_batches=1000)


def test_a_dataset_that_makes_batches_has_workers_to_spare():
    settings = Choice(PLAIN, BATCHED, GivenOptions()).settings

    assert settings.num_workers == 0
    assert choose_spare_workers(PLAIN, BATCHED, GivenOptions()) == 8
    assert "or up to 8 workers" in settings.reasons["num_workers"]


@pytest.mark.parametrize(
    ("machine", "traits", "options"),
    [
        ({"num_threads": 1}, {}, {}),
        ({"fork_hazard": "zarr decodes by zarrs"}, {}, {}),
        ({"start_method": "spawn"}, {}, {}),
        ({"is_worker": True}, {}, {}),
        ({"is_daemonic": True}, {}, {}),
        ({}, {"wants_workers": True}, {}),
        ({}, {"tied": "it is"}, {}),
        ({}, {"batched": False}, {}),
        ({}, {"num_batches": 1}, {}),
        ({}, {}, {"num_workers": 0}),
        ({}, {}, {"num_workers_override": 0}),
        ({}, {}, {"workers": "threads"}),
        ({}, {}, {"has_worker_init_fn": True}),
        ({}, {}, {"persistent_workers": True}),
        ({}, {}, {"in_order": False}),
        ({}, {}, {"multiprocessing_context": "spawn"}),
    ],
    ids=str,
)
def test_none_are_to_spare_where_they_could_do_harm_or_were_not_left_to_us(
    machine, traits, options
):
    machine = dataclasses.replace(PLAIN, **machine)
    traits = BATCHED._replace(**traits)

    assert choose_spare_workers(machine, traits, GivenOptions(**options)) == 0
