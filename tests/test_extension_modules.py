"""What is compiled is used where it was built and is wanted."""

import importlib

import pytest

from fastloader._extension_modules import (
    KERNELS,
    RAW_FILES,
    ROW_TEAM,
    TWISTERS,
    extension_module,
    import_error,
)


@pytest.fixture(params=[KERNELS, RAW_FILES, ROW_TEAM, TWISTERS])
def name(request):
    return request.param


def test_a_module_is_the_one_of_that_name(name, monkeypatch):
    monkeypatch.delenv("FASTLOADER_KERNELS", raising=False)
    built = pytest.importorskip(name, reason="was not compiled")

    assert extension_module(name) is built
    assert import_error(name) is None


def test_there_is_none_where_it_was_not_compiled(name, monkeypatch):
    def refuse(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)

    assert extension_module(name) is None
    assert import_error(name) is None


def test_one_that_cannot_be_imported_is_told_apart(name, monkeypatch):
    monkeypatch.delenv("FASTLOADER_KERNELS", raising=False)

    def refuse(name):
        raise ImportError(f"{name}: file too short")

    monkeypatch.setattr(importlib, "import_module", refuse)

    assert extension_module(name) is None
    assert str(import_error(name)) == f"{name}: file too short"


def test_there_is_none_where_kernels_are_not_wanted(name, monkeypatch):
    monkeypatch.setenv("FASTLOADER_KERNELS", "0")
    monkeypatch.setattr(importlib, "import_module", lambda _name: pytest)

    assert extension_module(name) is None
    assert import_error(name) is None
