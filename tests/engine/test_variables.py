"""Workers that import modules anew find what was set after the import."""

import sys
from argparse import Namespace
from types import ModuleType

from fastloader.engine._variables import collect_variables, restore_variables

SIZE = 32
OPTIONS = Namespace(crop=8, names=["a", "b"])
LARGE = list(range(100_000))


class Reader:
    zoom = 2

    def read(self):
        return SIZE, OPTIONS, LARGE, self.zoom


def test_plain_values_that_code_names_are_collected():
    found = collect_variables((Reader(),))

    assert found[f"{__name__}.SIZE"] == 32
    assert found[f"{__name__}.OPTIONS"] is OPTIONS
    assert found[f"{__name__}.Reader.zoom"] == 2
    assert f"{__name__}.LARGE" not in found


def test_functions_are_looked_into():
    assert collect_variables((lambda: SIZE,)) == {f"{__name__}.SIZE": 32}


def test_what_differs_is_restored(monkeypatch):
    found = collect_variables((Reader(),))
    monkeypatch.setattr(f"{__name__}.SIZE", 1)
    monkeypatch.setattr(Reader, "zoom", 1)

    restore_variables(found)

    assert (SIZE, Reader.zoom) == (32, 2)


def test_what_is_not_there_is_passed_over():
    restore_variables({"no.such.module.SIZE": 1, f"{__name__}.Gone.size": 2})


def test_what_functions_of_a_main_script_know_is_restored_too():
    known = {"__name__": "script"}
    exec("def read(): return SIZE", known)
    module = ModuleType("script")
    vars(module).update(known)
    sys.modules["script"] = module
    try:
        restore_variables({"script.SIZE": 7})
    finally:
        del sys.modules["script"]

    assert module.read() == module.SIZE == 7
