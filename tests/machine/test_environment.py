"""Variables are looked up as the operating system's mapping gives them."""

import os

import pytest

from fastloader.machine._environment import PROCESS_ENVIRONMENT, _ProcessEnvironment


@pytest.fixture(params=["encoded", "as Python has it"])
def environment(request):
    made = _ProcessEnvironment()
    if request.param == "encoded":
        assert made._encoded is not None  # on the systems that are tested
    else:
        made._encoded = None
    return made


def test_a_variable_is_what_was_set_last(environment, monkeypatch):
    monkeypatch.setenv("FASTLOADER_TEST", "grün")

    assert environment.get("FASTLOADER_TEST") == "grün"
    assert environment["FASTLOADER_TEST"] == "grün"
    assert "FASTLOADER_TEST" in environment

    monkeypatch.delenv("FASTLOADER_TEST")

    assert environment.get("FASTLOADER_TEST") == ""
    assert environment.get("FASTLOADER_TEST", "none") == "none"
    assert "FASTLOADER_TEST" not in environment
    with pytest.raises(KeyError):
        environment["FASTLOADER_TEST"]


def test_one_that_is_set_to_nothing_is_set(environment, monkeypatch):
    monkeypatch.setenv("FASTLOADER_TEST", "")

    assert "FASTLOADER_TEST" in environment
    assert environment.get("FASTLOADER_TEST", "none") == ""


def test_all_variables_are_there():
    assert dict(PROCESS_ENVIRONMENT) == dict(os.environ)
    assert len(PROCESS_ENVIRONMENT) == len(os.environ)
