"""Settings are valid or refused, and say why they are what they are."""

import copy
import dataclasses
import pickle

import pytest

from fastloader import LoaderSettings
from fastloader.errors import SettingsError

VALUES = {
    "num_workers": 2,
    "workers": "processes",
    "prefetch_factor": 2,
    "persistent_workers": True,
    "multiprocessing_context": "fork",
    "timeout": 0,
    "pin_memory": False,
    "transport": "shared",
    "in_order": True,
    "device": None,
    "resident": None,
    "batched": False,
}
REASONS = {name: f"because of {name}" for name in VALUES}


def make(**changed):
    return LoaderSettings(**{**VALUES, "reasons": REASONS, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"timeout": -0.5}, "timeout"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"prefetch_factor": None}, "prefetch_factor"),
        ({"transport": "pigeon"}, "'pigeon'"),
        (
            {"num_workers": 0},
            "prefetch_factor, persistent_workers, multiprocessing_context need",
        ),
        ({"reasons": {"num_workers": "given"}}, "'timeout'"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(changed, words):
    with pytest.raises(SettingsError, match=words):
        make(**changed)


def test_the_table_names_every_setting_its_value_and_its_reason():
    lines = make(ignored=("timeout=5",)).explain().splitlines()

    for (name, value), line in zip(VALUES.items(), lines, strict=False):
        assert line.split()[:2] == [name, str(value)]
        assert line.endswith(REASONS[name])
    assert lines[-1].split()[:2] == ["ignored", "timeout=5"]


def test_settings_cannot_be_changed():
    settings = make()

    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.num_workers = 3
    with pytest.raises(TypeError):
        settings.reasons["num_workers"] = "mine"


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda settings: pickle.loads(pickle.dumps(settings))]
)
def test_a_copy_is_equal(again):
    settings = make(ignored=("timeout=5",))

    assert again(settings) == settings
