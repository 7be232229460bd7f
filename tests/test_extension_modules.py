"""What is compiled is used where it was built and is wanted."""

import importlib

import pytest

from fastloader._extension_modules import extension_module

MODULES = ["fastloader.shm._streaming", "fastloader.transforms._kernels"]


@pytest.fixture(params=MODULES)
def name(request):
    return request.param


def test_a_module_is_the_one_of_that_name(name, monkeypatch):
    monkeypatch.delenv("FASTLOADER_KERNELS", raising=False)
    built = pytest.importorskip(name, reason="was not compiled")

    assert extension_module(name) is built


def test_there_is_none_where_it_was_not_compiled(name, monkeypatch):
    def refuse(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)

    assert extension_module(name) is None


def test_there_is_none_where_kernels_are_not_wanted(name, monkeypatch):
    monkeypatch.setenv("FASTLOADER_KERNELS", "0")
    monkeypatch.setattr(importlib, "import_module", lambda _name: pytest)

    assert extension_module(name) is None
