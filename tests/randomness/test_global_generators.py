"""States of the global generators are told apart without making lists of numbers."""

import itertools
import random
import sys

import numpy as np
import pytest
import torch

from fastloader._extension_modules import TWISTERS
from fastloader.randomness import _global_generators
from fastloader.randomness._global_generators import (
    SEEDS_AHEAD,
    NumPyGenerator,
    PythonGenerator,
    TorchGenerator,
    global_generators,
)
from fastloader.randomness._seeding import set_global_seeds
from fastloader.threads._interpreter_lock import has_interpreter_lock

PYTHON_DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "bits": lambda: random.getrandbits(1),
    "a whole turn": lambda: [random.getrandbits(32) for _ in range(624)],
    "shuffle": lambda: random.shuffle([1, 2, 3]),
}


TORCH_DRAWS = {
    "float": lambda generator: torch.rand(1, generator=generator),
    "integer": lambda generator: torch.randint(5, (), generator=generator),
    "normal": lambda generator: torch.randn((), dtype=torch.float64, generator=generator),
    "a whole turn": lambda generator: torch.rand(624, generator=generator),
    "permutation": lambda generator: torch.randperm(3, generator=generator),
}


def global_python_generator():
    return PythonGenerator(random.getstate.__self__)


@pytest.fixture(params=["words", "tuples"])
def python_generator(request, monkeypatch):
    """The generator as it is read here, and as where its words are elsewhere."""
    if request.param == "tuples":
        monkeypatch.setattr(_global_generators, "_words_of_python", lambda _: None)
    return global_python_generator()


@pytest.mark.parametrize("draw", PYTHON_DRAWS.values(), ids=PYTHON_DRAWS)
def test_a_draw_from_pythons_generator_shows(python_generator, draw):
    random.seed(3)
    before = python_generator.mark()

    assert python_generator.mark() == before
    draw()
    assert python_generator.mark() != before


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


@pytest.mark.skipif(
    sys.implementation.name != "cpython" or not has_interpreter_lock(),
    reason="the words are elsewhere, or others may draw meanwhile",
)
def test_cpythons_words_are_found():
    assert global_python_generator().words is not None


def test_words_that_are_not_the_state_are_not_taken_for_it(monkeypatch):
    _global_generators._offset_of_words.cache_clear()
    monkeypatch.setattr(_global_generators, "_memory", lambda _address, size: bytes(size))

    assert _global_generators._offset_of_words() is None
    _global_generators._offset_of_words.cache_clear()


@pytest.mark.parametrize("draw", [np.random.rand, np.random.randn])
def test_numpys_generator_goes_on_where_it_was_saved(draw):
    generator = NumPyGenerator()
    np.random.seed(3)
    draw()
    generator.save()
    expected = [draw(), draw()]
    np.random.seed(4)
    before = generator.mark()
    draw()
    assert generator.mark() != before

    generator.restore(is_touched=True)

    assert [draw(), draw()] == expected


@pytest.fixture(params=["places", "states"])
def torch_generator(request, monkeypatch):
    """A generator as it is looked at here, and as where its memory is another."""
    if request.param == "states":
        monkeypatch.setattr(_global_generators, "places_of_draws", lambda _: [])
    generator = torch.Generator().manual_seed(3)
    return generator, TorchGenerator(generator)


@pytest.mark.parametrize("draw", TORCH_DRAWS.values(), ids=TORCH_DRAWS)
def test_a_draw_from_torchs_generator_shows(torch_generator, draw):
    generator, looked_at = torch_generator
    marks = [looked_at.mark(), looked_at.mark()]
    for _ in range(3):
        draw(generator)
        marks.append(looked_at.mark())

    assert marks[0] == marks[1]
    assert all(earlier != later for earlier, later in itertools.pairwise(marks[1:]))


@pytest.mark.parametrize("draw", TORCH_DRAWS.values(), ids=TORCH_DRAWS)
def test_torchs_generator_goes_on_where_it_was_saved(torch_generator, draw):
    generator, looked_at = torch_generator
    for _ in range(3):  # an odd number of normal draws leaves the second of a pair for later
        draw(generator)
        looked_at.save()
        expected = generator.get_state()
        generator.manual_seed(4)
        draw(generator)

        looked_at.restore()

        assert torch.equal(generator.get_state(), expected)


GLOBAL_DRAWS = {
    "torch": lambda: torch.rand(1),
    "torch normal": lambda: torch.randn((), dtype=torch.float64),
    "numpy": np.random.rand,
    "numpy normal": np.random.randn,
    "python": random.random,
    "python gauss": lambda: random.gauss(0, 1),
}


@pytest.fixture(params=["compiled", "known", "torch unknown", "python unknown"])
def handled_generators(request, monkeypatch):
    """All three: by what is compiled, and where it is not, or the memory of one of them is not known."""
    if request.param == "compiled":
        pytest.importorskip(TWISTERS, reason="was not compiled")
    else:
        monkeypatch.setattr(_global_generators, "extension_module", lambda _name: None)
    if request.param == "torch unknown":
        monkeypatch.setattr(_global_generators, "places_of_draws", lambda _: [])
    if request.param == "python unknown":
        monkeypatch.setattr(_global_generators, "_words_of_python", lambda _: None)
    return global_generators()


@pytest.mark.parametrize("draw", GLOBAL_DRAWS.values(), ids=GLOBAL_DRAWS)
def test_a_draw_from_any_global_generator_shows(handled_generators, draw):
    set_global_seeds(1, 2, 3)
    handled_generators.watch()

    assert not handled_generators.has_drawn()
    draw()
    assert handled_generators.has_drawn()


def test_a_draw_of_a_kept_normal_alone_shows(handled_generators):
    set_global_seeds(1, 2, 3)
    random.gauss(0, 1)
    handled_generators.watch()
    random.gauss(0, 1)

    assert handled_generators.has_drawn()


@pytest.mark.parametrize("draw", GLOBAL_DRAWS.values(), ids=GLOBAL_DRAWS)
@pytest.mark.parametrize("within", GLOBAL_DRAWS.values(), ids=GLOBAL_DRAWS)
def test_global_generators_go_on_where_they_were_isolated(handled_generators, draw, within):
    handled_generators.prepare(SEEDS)
    set_global_seeds(1, 2, 3)
    for which in range(
        4
    ):  # an odd number of normal draws leaves the second of a pair for later
        draw()
        expected = global_states()
        handled_generators.isolate(which)
        within()

        assert handled_generators.restore()

        assert global_states() == expected
        handled_generators.isolate(which)
        assert not handled_generators.restore()
        assert global_states() == expected


def test_generators_that_are_not_isolated_are_left_as_they_are(handled_generators):
    expected = global_states()

    assert not handled_generators.restore()

    assert global_states() == expected


SEEDS = [
    (7 + which, seed, seed % 2**32)
    for which, seed in enumerate((0, 1, 2**32 - 1, 2**32, 2**64 - 1, 123456789012345, 7, 2**40))
]


@pytest.mark.parametrize("which", range(SEEDS_AHEAD))
@pytest.mark.parametrize("draw", GLOBAL_DRAWS.values(), ids=GLOBAL_DRAWS)
def test_isolated_generators_have_the_seeds_of_the_libraries(handled_generators, draw, which):
    set_global_seeds(*SEEDS[which])
    expected = global_states()
    for one in GLOBAL_DRAWS.values():
        one()
    draw()  # whose second of a pair has to go, if it is one
    handled_generators.prepare(SEEDS)

    handled_generators.isolate(which)
    found = global_states()
    handled_generators.restore()

    assert found == expected


def global_states():
    _, words, place, has_normal, normal = np.random.get_state()
    numpys = words.tobytes(), place, has_normal and normal  # else an old one is left there
    return hash(random.getstate()), hash(numpys), hash(torch.get_rng_state().numpy().tobytes())


@pytest.mark.parametrize("python_seed", [0, 1, 2**32, 2**64 - 1])
def test_seeds_are_those_of_the_libraries(python_seed):
    torch.manual_seed(7)
    random.seed(python_seed)
    np.random.seed(2**32 - 1)
    expected = global_states()
    for draw in GLOBAL_DRAWS.values():
        draw()  # the second of a pair has to go

    set_global_seeds(7, python_seed, 2**32 - 1)

    assert global_states() == expected


@pytest.fixture
def twisters():
    return pytest.importorskip(TWISTERS, reason="was not compiled").Twisters


@pytest.mark.parametrize("num_bytes", [0, 2496, 2504])
def test_words_of_another_number_are_refused(twisters, num_bytes):
    words, others = bytearray(2500), bytearray(num_bytes)

    with pytest.raises(ValueError, match=f"2500 bytes in all, not {num_bytes}"):
        twisters((), words, others)
    with pytest.raises(ValueError, match=f"2500 bytes in all, not {num_bytes}"):
        twisters((), others, words)


def test_words_that_may_not_be_written_are_refused(twisters):
    with pytest.raises(BufferError):
        twisters((), bytes(2500), bytearray(2500))


@pytest.mark.parametrize("places", [(b"1",) * 9, (bytes(513),), (b"1", bytes(512))])
def test_more_places_than_there_is_room_for_are_refused(twisters, places):
    with pytest.raises(ValueError, match="8 places of 512 bytes"):
        twisters(places, bytearray(2500), bytearray(2500))


def test_what_was_not_prepared_or_saved_is_refused(twisters):
    found = twisters((), bytearray(2500), bytearray(2500))

    with pytest.raises(ValueError, match="96 bytes of seeds"):
        found.prepare(bytes(95))
    for which in (-1, 8):
        with pytest.raises(IndexError, match=f"0 to 7, not {which}"):
            found.seed(which)
    with pytest.raises(RuntimeError, match="Nothing was saved"):
        found.restore()
