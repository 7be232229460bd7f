"""Batches go to devices that are there, and others are refused before anything is read."""

import pytest
import torch
from torch.utils.data import TensorDataset

from fastloader import FastLoader
from fastloader.epochs import _staging
from fastloader.errors import SettingsError


class Two:
    """torch's module of a kind of device of which there are two."""

    @staticmethod
    def device_count():
        return 2

    @staticmethod
    def current_device():
        return 1


@pytest.fixture(autouse=True)
def forget_modules():
    _staging._module_of.cache_clear()
    yield
    _staging._module_of.cache_clear()


@pytest.mark.parametrize(
    ("device", "expected"), [("xpu", "xpu:1"), ("xpu:0", "xpu:0"), ("cpu", None), (None, None)]
)
def test_a_device_without_a_number_is_the_current_one(monkeypatch, device, expected):
    monkeypatch.setattr(torch, "xpu", Two)
    loader = FastLoader(TensorDataset(torch.arange(4)), device=device)

    found = _staging.device_of(loader)

    assert found == (None if expected is None else torch.device(expected))


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("xpu:2", "torch sees 2 of kind 'xpu', from xpu:0 on"),
        ("mtia:0", "torch sees none of it"),
        ("meta", "torch sees none of it"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch, device, says):
    monkeypatch.setattr(torch, "xpu", Two)
    loader = FastLoader(TensorDataset(torch.arange(4))).to(device)

    with pytest.raises(SettingsError, match=f"device='{device}' is not there: {says}"):
        iter(loader)


def test_the_forked_child_of_a_process_that_used_a_device_pins_nothing(monkeypatch):
    loader = FastLoader(TensorDataset(torch.arange(4)), 2, pin_memory=True, num_workers=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(_staging, "is_lost_by_fork", lambda: True)

    assert [batch.tolist() for [batch] in loader] == [[0, 1], [2, 3]]
