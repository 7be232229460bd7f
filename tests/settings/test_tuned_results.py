"""Stored results of tune are found again by what they were measured on, or not at all."""

import dataclasses
import json
import pickle
import warnings

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fastloader import FastLoader
from fastloader.errors import SettingsError
from fastloader.machine._machine import read_machine
from fastloader.settings._tuned_results import load_result, result_path, save_result


class Squares(Dataset):
    def __init__(self, length=10):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index) ** 2])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTLOADER_CACHE_DIR", str(tmp_path))
    return tmp_path


TUNED = {"num_workers": 2, "workers": "threads", "prefetch_factor": 4, "in_order": False}


def settings(**options):
    chosen = FastLoader(Squares(), **(options or TUNED)).settings
    reasons = dict.fromkeys(chosen.reasons, "tuned")
    return dataclasses.replace(chosen, reasons=reasons)


def store(dataset=None, batch_size=4, **options):
    path = result_path(dataset or Squares(), batch_size, read_machine())
    save_result(path, settings(**options), {"rows": []})
    return path


def searched(loader):
    return {name: getattr(loader.settings, name) for name in TUNED}


def test_what_is_saved_is_loaded():
    path = store()

    assert load_result(path) == settings()


def test_a_stored_result_fills_what_is_left_open():
    store()

    loader = FastLoader(Squares(), 4, settings="tuned")

    assert searched(loader) == TUNED
    assert {loader.settings.reasons[name] for name in TUNED} == {"tuned"}
    assert sorted(int(x) for batch in loader for x in batch) == [i * i for i in range(10)]


@pytest.mark.parametrize(
    "loader",
    [
        lambda: FastLoader(Squares(), 8, settings="tuned"),
        lambda: FastLoader(Squares(11), 4, settings="tuned"),
        lambda: FastLoader(Squares(), batch_sampler=[[1]], settings="tuned"),
    ],
    ids=["batch size", "dataset", "batch sampler"],
)
def test_without_a_stored_result_settings_are_automatic_and_say_so(loader, recwarn):
    store()

    loader = loader()

    assert loader.settings.workers == "processes"
    assert "no result of fastloader.tune is stored for this dataset" in loader.explain()
    assert not recwarn.list


def test_a_result_belongs_to_its_machine():
    machine = read_machine()
    paths = {
        result_path(Squares(), 4, dataclasses.replace(machine, **facts))
        for facts in ({}, {"granted_cpus": 99}, {"accelerator": "cuda"}, {"available_bytes": 1})
    }

    assert len(paths) == 3  # how much memory is free is no such fact


def test_a_result_belongs_to_a_kind_of_processor(monkeypatch):
    found = set()
    for model in ("Slow 1", "Quick 9"):
        monkeypatch.setattr(
            "fastloader.settings._tuned_results.read_processor", lambda model=model: model
        )
        found.add(result_path(Squares(), 4, read_machine()))

    assert len(found) == 2


def test_a_result_belongs_to_what_the_dataset_does():
    store()

    class Cubes(Squares):
        def __getitem__(self, index):
            return torch.tensor([float(index) ** 3])

    Cubes.__name__ = Cubes.__qualname__ = "Squares"

    assert FastLoader(Squares(), 4, settings="tuned").settings.workers == "threads"
    assert FastLoader(Cubes(), 4, settings="tuned").settings.workers == "processes"


@pytest.mark.multiprocess
def test_workers_that_were_measured_all_start_at_once():
    store(num_workers=2)

    iterator = iter(FastLoader(Squares(100), 4, settings=settings(num_workers=2)))

    assert len(iterator._workers) == 2
    list(iterator)


def test_what_the_caller_writes_wins():
    store()

    loader = FastLoader(
        Squares(), 4, num_workers=0, in_order=True, workers="processes", settings="tuned"
    )

    assert searched(loader) == {
        "num_workers": 0,
        "workers": "processes",
        "prefetch_factor": None,
        "in_order": True,
    }
    assert loader.settings.ignored == ()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 1}', '{"version": 1, "settings": {"a": 1}}', "\0"]
)
def test_a_damaged_file_is_warned_of_and_left(content):
    path = store()
    path.write_text(content)

    with pytest.warns(UserWarning, match="run fastloader.tune again, which replaces the file"):
        loader = FastLoader(Squares(), 4, settings="tuned")

    assert loader.settings.workers == "processes"
    assert path.read_text() == content


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": -1},
        {"num_workers": 2.5},
        {"num_workers": True},
        {"num_workers": None},
        {"num_workers": "2"},
        {"num_workers": 10**6},
        {"num_workers": 10**400},
        {"prefetch_factor": 1.5},
        {"workers": "ants"},
        {"workers": ["threads"]},
        {"transport": None},
        {"pin_memory": "yes"},
        {"in_order": 1},
        {"multiprocessing_context": 3},
        {"timeout": "0"},
        {"ignored": []},
        {"unknown": 1},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_values_that_cannot_be_are_a_damaged_file(wrong):
    path = store()
    document = json.loads(path.read_text())
    document["settings"].update(wrong)
    path.write_text(json.dumps(document))

    with pytest.warns(UserWarning, match=next(iter(wrong))):
        assert load_result(path) is None


@pytest.mark.parametrize("reasons", [None, [1], {}, {"num_workers": 1}], ids=str)
def test_reasons_that_are_no_texts_are_a_damaged_file(reasons):
    path = store()
    document = json.loads(path.read_text())
    if reasons:
        document["reasons"] = {**document["reasons"], **dict.fromkeys(reasons, 1)}
    else:
        document["reasons"] = reasons
    path.write_text(json.dumps(document))

    with pytest.warns(UserWarning, match="cannot be used"):
        assert load_result(path) is None


def test_a_file_that_is_nested_without_end_is_a_damaged_one():
    path = store()
    path.write_text("[" * 100_000)

    with pytest.warns(UserWarning, match="cannot be used"):
        assert load_result(path) is None


def test_a_file_of_another_version_is_no_result():
    path = store()
    path.write_text('{"version": 99}')

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_result(path) is None


@pytest.mark.parametrize("options", [TUNED, {"num_workers": 0}, {"persistent_workers": False}])
def test_settings_given_back_to_a_loader_are_its_settings(options):
    first = FastLoader(Squares(), **options).settings

    again = FastLoader(Squares(), settings=first)

    assert again.settings == first
    assert FastLoader(Squares(), settings=pickle.loads(pickle.dumps(first))).settings == first


def test_settings_beside_resolved_values_change_nothing():
    first = FastLoader(Squares(), 4, **TUNED)
    attributes = {
        name: value for name, value in vars(first).items() if not name.startswith("_")
    }
    for name in ("batch_size", "batch_sampler", "drop_last"):
        del attributes[name]

    again = FastLoader(**{**attributes, "settings": first.settings})

    assert searched(again) == TUNED


@pytest.mark.parametrize("wrong", ["tunde", {"num_workers": 2}, None], ids=str)
def test_settings_of_no_known_kind_are_refused(wrong):
    with pytest.raises(SettingsError, match="'auto', 'tuned' or a LoaderSettings"):
        FastLoader(Squares(), settings=wrong)


def test_more_workers_than_cpus_are_warned_of_unless_they_were_measured(recwarn):
    many = read_machine().affinity_cpus + 1
    store(num_workers=many)
    recwarn.clear()

    FastLoader(Squares(), 4, settings="tuned")
    assert not recwarn.list

    with pytest.warns(UserWarning, match="This DataLoader will create"):
        FastLoader(TensorDataset(torch.zeros(9)), 4, num_workers=many)
