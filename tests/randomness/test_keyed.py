"""Random numbers by key: exact, the same however they are asked for, and random."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloader.randomness._keyed import Draws, mix, mix_tensor, sample_keys

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**40)
indices = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20)


def test_the_hash_is_that_of_splitmix64():
    # First outputs of SplitMix64 from state 0: those of java.util.SplittableRandom(0).
    states = np.array([1, 2, 3], np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    words = mix(states)

    assert [f"{word:016x}" for word in words.tolist()] == [
        "e220a8397b1dcdaf",
        "6e789e6aa1b965f4",
        "06c45d188009454f",
    ]


@given(st.lists(seeds, min_size=1))
def test_torch_gives_the_bits_that_numpy_gives(values):
    array = np.array(values, np.uint64)

    words = mix_tensor(torch.from_numpy(array.view(np.int64).copy()))

    assert np.array_equal(words.numpy().view(np.uint64), mix(array))


@given(seeds, epochs, indices)
def test_a_batch_of_keys_is_the_keys_of_its_samples(seed, epoch, numbers):
    keys = sample_keys(seed, epoch, numbers)

    assert keys.tolist() == [sample_keys(seed, epoch, [n])[0] for n in numbers]
    assert keys.tolist() == sample_keys(seed, epoch, np.array(numbers)).tolist()
    assert keys[:1].tolist() == sample_keys(seed, epoch, np.array(numbers[:1])).tolist()


@given(seeds, epochs, st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=50))
def test_no_two_samples_of_an_epoch_have_the_same_key(seed, epoch, numbers):
    assert len(set(sample_keys(seed, epoch, numbers).tolist())) == len(numbers)


DRAWS = {
    "words": lambda draws: draws.words(3),
    "one word": lambda draws: draws.words(),
    "uniform": lambda draws: draws.uniform(-2, 5),
    "several": lambda draws: draws.uniform(num=4),
    "integers": lambda draws: draws.integers(-3, 9),
    "chance": lambda draws: draws.chance(0.3),
    "normal": lambda draws: draws.normal_like(torch.zeros(len(draws), 3, 5, 7)).numpy(),
    "stream": lambda draws: draws.stream(7).words(2),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
@given(seed=seeds, numbers=indices)
def test_a_batch_of_draws_is_the_draws_of_its_samples(draw, seed, numbers):
    draws = Draws.of(seed, 1, numbers)
    draws.uniform()

    together = draw(draws)

    for row, number in zip(together, numbers, strict=True):
        alone = Draws.of(seed, 1, [number])
        alone.uniform()
        assert np.array_equal(draw(alone)[0], row)


def test_normal_numbers_do_not_depend_on_the_size_of_the_batch():
    images = torch.zeros(64, 1, 100, 41)  # several blocks, and a size that is no multiple of 4

    together = Draws.of(5, 0, range(64)).normal_like(images)

    alone = Draws.of(5, 0, [63]).normal_like(images[63:])
    assert torch.equal(together[63:], alone)


def test_normal_numbers_have_the_bits_that_another_device_computes():
    images = torch.zeros(3, 2, 5, 7)
    draws = Draws.of(5, 0, [1, 2, 3])

    on_device = draws._normal_on_device(images, draw=0)

    assert torch.equal(on_device, draws.normal_like(images))


def test_taking_some_samples_keeps_the_point_of_drawing():
    draws = Draws.of(1, 2, range(10))
    draws.uniform()

    taken = draws.take([7, 3]).uniform()

    assert taken.tolist() == draws.uniform()[[7, 3]].tolist()


@pytest.mark.parametrize(
    "other",
    [
        lambda: Draws.of(2, 0, [0, 1]),
        lambda: Draws.of(1, 1, [0, 1]),
        lambda: Draws.of(1, 0, [2, 3]),
        lambda: Draws.of(1, 0, [0, 1]).stream(0),
        lambda: Draws.of(1, 0, [0, 1]).stream(0).stream(0),
    ],
    ids=["seed", "epoch", "index", "stream", "stream of a stream"],
)
def test_another_seed_epoch_index_or_stream_gives_other_numbers(other):
    words = Draws.of(1, 0, [0, 1]).words(100)

    assert not np.isin(other().words(100), words).any()


def test_draws_of_one_sample_do_not_share_numbers():
    draws = Draws.of(1, 0, [5])

    words = np.concatenate([draws.words(1000), draws.words(1000), draws.stream(1).words(1000)])

    assert len(np.unique(words)) == 3000


def _chi_square(counts):
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


# Neighbours in each direction that a key can move in, 2**14 of them.
_MANY = 16_384
NEIGHBOURS = {
    "indices": lambda: sample_keys(0, 0, range(_MANY)),
    "epochs": lambda: np.concatenate([sample_keys(0, e, [0]) for e in range(_MANY)]),
    "seeds": lambda: np.concatenate([sample_keys(s, 0, [0]) for s in range(_MANY)]),
    "far indices": lambda: sample_keys(0, 0, np.arange(_MANY) << 40),
}
STREAMS = {
    "first draw": lambda draws: draws.words()[:, 0],
    "second draw": lambda draws: (draws.words(), draws.words())[1][:, 0],
    "second lane": lambda draws: draws.words(2)[:, 1],
    "stream": lambda draws: draws.stream(3).words()[:, 0],
}


@pytest.mark.parametrize("keys", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
@pytest.mark.parametrize("read", STREAMS.values(), ids=STREAMS.keys())
def test_numbers_under_neighbouring_keys_are_uniform_and_uncorrelated(keys, read):
    words = read(Draws(keys()))

    bits = (words[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).astype(np.float64)
    signs = 2 * bits - 1
    correlation = signs[:-1].T @ signs[1:] / np.sqrt(_MANY)
    within = signs.T @ signs / np.sqrt(_MANY)
    np.fill_diagonal(within, 0)
    # Each of the 4096 entries is standard normal if the bits are independent.
    assert abs(signs.sum(axis=0)).max() / np.sqrt(_MANY) < 5
    assert abs(correlation).max() < 6
    assert abs(within).max() < 6
    for shift in (0, 20, 48):  # lowest, middle and highest bits
        bins = words >> np.uint64(shift) & np.uint64(0xFFFF)
        assert abs(_chi_square(np.bincount(bins.astype(np.int64) >> 8, minlength=256))) < 5


def test_pairs_of_draws_fill_the_square_evenly():
    draws = Draws.of(11, 3, range(200_000))
    first, second = draws.uniform(), draws.uniform()

    counts, _, _ = np.histogram2d(first, second, bins=32, range=[[0, 1], [0, 1]])

    assert abs(_chi_square(counts)) < 5


def test_one_bit_of_the_index_changes_half_of_the_bits():
    numbers = np.arange(2000)
    words = sample_keys(9, 4, numbers)

    for bit in range(20):
        changed = words ^ sample_keys(9, 4, numbers ^ (1 << bit))
        share = np.bitwise_count(changed).mean() / 64 if hasattr(np, "bitwise_count") else 0.5
        assert abs(share - 0.5) < 0.01


def test_uniform_numbers_stay_within_their_bounds():
    values = Draws.of(1, 0, range(100_000)).uniform(-3.0, 2.0)

    assert values.min() >= -3
    assert values.max() <= 2
    assert abs(values.mean() + 0.5) < 0.02


def test_integers_are_equally_likely_and_their_bound_is_left_out():
    values = Draws.of(1, 0, range(100_000)).integers(-2, 3)

    assert np.unique(values).tolist() == [-2, -1, 0, 1, 2]
    assert abs(_chi_square(np.bincount(values + 2))) < 4


def test_integers_take_bounds_of_each_sample():
    values = Draws.of(1, 0, range(5)).integers(0, np.array([1, 1, 1, 1, 100]))

    assert values[:4].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_chance_is_true_as_often_as_it_should_be(probability):
    values = Draws.of(1, 0, range(100_000)).chance(probability)

    assert abs(values.mean() - probability) < 0.01
    assert values.mean() == probability or 0 < probability < 1


def test_normal_numbers_are_standard_normal():
    values = Draws.of(1, 0, range(4)).normal_like(torch.zeros(4, 250_000)).double()

    assert abs(values.mean()) < 0.005
    assert abs(values.std() - 1) < 0.005
    assert abs((values**3).mean()) < 0.02
    assert abs((values**4).mean() - 3) < 0.05
    for limit, share in ((1.0, 0.682689), (2.0, 0.954500), (3.0, 0.997300)):
        assert abs((values.abs() < limit).double().mean() - share) < 0.002


def test_drawing_leaves_the_global_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()

    Draws.of(1, 0, range(4)).normal_like(torch.zeros(4, 9))

    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_no_samples_draw_nothing():
    draws = Draws.of(1, 0, [])

    assert draws.uniform().shape == (0,)
    assert draws.normal_like(torch.zeros(0, 3, 4, 4)).shape == (0, 3, 4, 4)
