"""States of the global generators are told apart without making lists of numbers."""

import random
import sys

import numpy as np
import pytest

from fastloader.randomness import _global_generators
from fastloader.randomness._global_generators import NumPyGenerator, PythonGenerator

PYTHON_DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "bits": lambda: random.getrandbits(1),
    "a whole turn": lambda: [random.getrandbits(32) for _ in range(624)],
    "shuffle": lambda: random.shuffle([1, 2, 3]),
}


@pytest.fixture(params=["words", "tuples"])
def python_generator(request, monkeypatch):
    """The generator as it is read here, and as where its words are elsewhere."""
    if request.param == "tuples":
        monkeypatch.setattr(_global_generators, "_address_of_words", lambda _: None)
    return PythonGenerator()


@pytest.mark.parametrize("draw", PYTHON_DRAWS.values(), ids=PYTHON_DRAWS)
def test_a_draw_from_pythons_generator_shows(python_generator, draw):
    random.seed(3)
    before = python_generator.raw()

    assert python_generator.raw() == before
    draw()
    assert python_generator.raw() != before


@pytest.mark.parametrize("draw", PYTHON_DRAWS.values(), ids=PYTHON_DRAWS)
def test_pythons_generator_goes_on_where_it_was_saved(python_generator, draw):
    random.seed(3)
    draw()
    for _ in range(2):
        python_generator.save()
        expected = random.getstate()
        random.seed(4)
        draw()

        python_generator.restore()

        assert random.getstate() == expected
        draw()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="the words are elsewhere")
def test_cpythons_words_are_found():
    assert PythonGenerator()._address is not None


def test_words_that_are_not_the_state_are_not_taken_for_it(monkeypatch):
    _global_generators._address_of_words.cache_clear()
    monkeypatch.setattr(
        _global_generators.ctypes, "string_at", lambda _address, size: bytes(size)
    )

    assert _global_generators._address_of_words(random.Random(3)) is None
    _global_generators._address_of_words.cache_clear()


@pytest.mark.parametrize("draw", [np.random.rand, np.random.randn])
def test_numpys_generator_goes_on_where_it_was_saved(draw):
    generator = NumPyGenerator()
    np.random.seed(3)
    draw()
    generator.save()
    expected = [draw(), draw()]
    np.random.seed(4)
    before = generator.raw()
    draw()
    assert generator.raw() != before

    generator.restore(is_touched=True)

    assert [draw(), draw()] == expected
